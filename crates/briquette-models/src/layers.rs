//! The layers that architectures are built of. Taken from one place, so that layers which hold codes can replace them.

pub use burn::nn::conv::{Conv2d, Conv2dConfig};
pub use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
pub use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
