//! burn's layers, whose weights may be held as codes.
//!
//! They have the constructors, configs and parameter names of burn's own, so a model only changes an import. While their weights are
//! floats they work as burn's layers do; [`quantize_dynamic`](crate::quantize_dynamic()) and
//! [`load_compressed`](crate::load_compressed) replace weights by codes, on which integer kernels run.

mod blocks;
mod conv2d;
mod embedding;
mod layer_norm;
mod linear;
mod runs_on_codes;

pub use blocks::{feed_forward, self_attention};
pub use conv2d::{Conv2d, Conv2dConfig, Then};
pub use embedding::{Embedding, EmbeddingConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
pub use runs_on_codes::{RunsOnCodes, TableUse};
