//! Kernels for compressed weights as burn operations.
//!
//! Weights are packed for the device that uses them, the CPU (flex) or a GPU (CUDA), and passed as a shared
//! handle. Operations are for inference and have no gradients, except those on images ([`float_conv2d`],
//! [`max_pool2d`]) and [`fake_quantize_activations`].
//!
//! Each backend is a module, `cube` or `flex`; features select which of them are built.

mod activations;
#[cfg(feature = "cuda")]
mod cube;
#[cfg(not(feature = "cuda"))]
#[path = "compressed/no_cube.rs"]
mod cube;
mod device;
mod fixed;
#[cfg(feature = "flex")]
mod flex;
mod host_or_cuda;
mod images;
mod int8_blocks;
mod linears;
mod product;
mod quantized;
mod shapes;
#[cfg(all(test, feature = "flex"))]
mod tests;
mod weights;

pub use activations::{ActivationOps, fake_quantize_activations, round_activations};
#[cfg(feature = "cuda")]
pub use cube::{RowCodeOps, gpu_of, keep_kernels};
pub use device::{looks_up, runs_on};
pub use fixed::{CodeGrid, FixedConv2dCall, ImageCodes, fixed_conv2d, image_codes};
pub use images::{ImageGrads, ImageOps, convolves, float_conv2d, max_pool2d};
pub use int8_blocks::{CodedLinear, FeedForwardActivation, Int8BlockOps, feed_forward, self_attention};
pub use linears::linears;
pub use product::{ProductOps, product};
pub use quantized::{QuantizedOps, codes, conv2d, decode, embedding, linear, look_up};
pub use weights::{Conv2dCall, InputColumns, LinearWeights, QuantizedConv2d, Table, Weights};
