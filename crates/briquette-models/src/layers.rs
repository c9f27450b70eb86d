//! The layers that architectures are built of: ours where weights may be codes, burn's elsewhere.

pub use briquette_nn::layers::{Conv2d, Conv2dConfig, Then};
pub use briquette_nn::layers::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
pub use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, RmsNorm, RmsNormConfig};
