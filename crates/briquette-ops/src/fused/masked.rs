//! Masks and grids of training as burn operations.
//!
//! While a network trains, it computes with masked and rounded weights: [`fake_quantize()`] makes them in one pass over memory, bit for bit as
//! [`briquette_core::fake_quantize`] says. Gradients pass straight through the rounding; those of scales that are learned come from one pass
//! more ([`learned_grads`]). [`ops`] has both for tensors of the CPU; what lies elsewhere is left to burn's own operations.
//!
//! Non-goals: choosing masks and scales (`briquette-methods`, `briquette-methods`), rounded activations (`briquette-cpu`), attaching
//! anything to modules (`briquette-nn`).
//!
//! ```
//! use briquette_core::{Grid, Grouping, Rows};
//! use briquette_ops::fused::masked::{ScaledGrid, fake_quantize};
//!
//! let form = ScaledGrid { grid: Grid::INT8, grouping: Grouping::Row, rows: Rows::plain(1, 3) };
//! let values = fake_quantize(&[0.6, -0.4, 99.0], &[0, 1, 0], Some((&form, &[0.25], &[])));
//! assert_eq!(values, [0.5, 0.0, 31.75]); // 2 steps, dropped, and 127 steps, which are the most
//! ```

mod fake_quantize;
mod filled;
pub mod ops;

pub use fake_quantize::{ScaledGrid, fake_quantize, keep_grads, learned_grads, scale_of};
