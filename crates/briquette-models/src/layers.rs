//! The layers of the architectures: those of `briquette_nn::layers` if weights may be codes, otherwise burn's.

pub use briquette_nn::layers::{After, Conv2d, Conv2dConfig, Then};
pub use briquette_nn::layers::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
pub(crate) use briquette_nn::layers::{feed_forward, linears, self_attention};
pub use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, RmsNorm, RmsNormConfig};

use briquette_ops::fused;
use burn::tensor::Tensor;

/// Computes the RMS norm of `x`, in one pass where the device supports it.
pub(crate) fn normed<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    fused::rms_norm(x, norm.gamma.val(), norm.epsilon)
}
