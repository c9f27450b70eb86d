//! What networks compute between their products, as burn operations: attention, norms, activations and rotary positions; and the masked and rounded
//! weights of training ([`masked`]).
//!
//! On the CPU (flex), f32 goes through each in one pass over memory, forth and back: by the loops of [`briquette_cpu::float`], with gradients where those
//! are recorded. Other types and devices are left to burn's own operations, by the functions that say so; the others are for where [`fuses`] says yes.
//!
//! Non-goals: the loops (`briquette-core`), products and weights that are codes (`briquette-cpu`), layers (`briquette-nn`).
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
pub mod masked;
mod ops;
mod parts;
mod record;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub use device::fuses;
pub use functions::{add_norm, attention, gelu, rms_norm, rotate, swiglu};
pub use ops::{AttentionHeads, FusedGrads, FusedOps};
pub use parts::in_parts;
