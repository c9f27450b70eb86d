//! Replacements for burn's layers whose weights may be stored as integer codes.
//!
//! They have the constructors, configs and parameter names of burn's layers, so a model only changes an import.
//! With float weights they compute like burn's layers. [`quantize_dynamic`](crate::quantize_dynamic()) and
//! [`load_compressed`](crate::load_compressed) replace the weights by codes for integer kernels.

mod blocks;
mod conv2d;
mod embedding;
mod layer_norm;
mod linear;
mod runs_on_codes;

pub use blocks::{feed_forward, linears, self_attention};
pub use conv2d::{After, Conv2d, Conv2dConfig, Then};
pub use embedding::{Embedding, EmbeddingConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
pub use runs_on_codes::{RunsOnCodes, TableUse};
