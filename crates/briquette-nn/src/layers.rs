//! burn's layers, whose weights may be held as codes.
//!
//! They have the constructors, configs and parameter names of burn's own, so a model changes by an import. As long as
//! their weights are floats they are burn's layers; [`quantize_dynamic`](crate::quantize_dynamic()) and
//! [`load_compressed`](crate::load_compressed) make codes of weights, which then run on integer kernels.

mod conv2d;
mod embedding;
mod layer_norm;
mod linear;

pub use conv2d::{Conv2d, Conv2dConfig, Then};
pub use embedding::{Embedding, EmbeddingConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
