//! Operations that burn does not have: fused f32 operations, and products with compressed weights.
//!
//! - [`fused`]: attention, norms, activations and rotary positions in one pass over memory, with gradients;
//!   masked and fake-quantized weights for training.
//! - [`compressed`]: matrix products, convolutions and lookups with int8, int4 and sparse weights.
//!
//! Operations run on the CPU (burn's flex backend, kernels of `briquette-cpu`); those with compressed weights, norms and
//! softmax also on NVIDIA GPUs (`briquette-cuda`). Non-goals: the kernels themselves, and layers (`briquette-nn`).

pub mod compressed;
#[cfg(feature = "cuda")]
mod cube_tensor;
#[cfg(feature = "flex")]
mod flex_tensor;
pub mod fused;
