//! Fused operations between matrix products: attention, norms, activations and rotary positions.
//!
//! Also has masked and fake-quantized weights for training ([`masked`]). On the CPU (flex), each f32 operation
//! takes one pass over memory, forward and backward, with the loops of [`briquette_cpu::float`]. For other
//! types and devices, functions that say so use burn's own operations; the rest require that [`fuses`] or
//! [`on_gpu`] returns true. On CUDA devices, norms, softmax, attention and rotary positions have kernels.
//!
//! Non-goals: the loops (`briquette-cpu`), products and compressed weights ([`compressed`](crate::compressed)),
//! layers (`briquette-nn`).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::flex().autodiff();
//! let [gate, up] = [[0.0, 20.0], [3.0, 0.5]].map(|values| Tensor::<1>::from_floats(values, &device).require_grad());
//! let y = briquette_ops::fused::swiglu(gate, up.clone());
//! assert_eq!(y.clone().into_data().try_to_vec::<f32>().unwrap(), [0.0, 10.0]);
//! assert_eq!(up.grad(&y.sum().backward()).unwrap().into_data().try_to_vec::<f32>().unwrap(), [0.0, 20.0]);
//! ```

mod autodiff;
mod device;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod gpu;
pub mod masked;
mod ops;
mod parts;
mod record;
#[cfg(feature = "cuda")]
mod rows;
#[cfg(not(feature = "cuda"))]
#[path = "fused/no_rows.rs"]
mod rows;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub use briquette_cpu::float::ActivationFunction;
pub use device::fuses;
pub use functions::{activate, add_norm, attention, gelu, layer_norm, relu, rms_norm, rotate, swiglu};
pub use gpu::{attend, attends, on_gpu, rotate_by_tables, softmax};
pub use ops::{AttentionHeads, FusedGrads, FusedOps, KeptHeads, RowNorm, ScoreRows};
pub use parts::in_parts;
#[cfg(feature = "cuda")]
pub use rows::RowOps;
