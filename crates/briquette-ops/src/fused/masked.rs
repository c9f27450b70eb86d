//! Masks and grids for training, as burn operations.
//!
//! During training, a network computes with masked and rounded weights. [`fake_quantize()`] computes these in
//! one pass over memory, bit for bit like [`briquette_core::fake_quantize`]. Gradients pass straight through
//! the rounding; another pass computes those of learned scales ([`learned_grads`]). [`ops`] has both for CPU
//! tensors; other devices use burn's own operations.
//!
//! Non-goals: choosing masks and scales (`briquette-methods`), fake quantization of activations
//! ([`compressed`](crate::compressed)), attaching masks to modules (`briquette-nn`).
//!
//! ```
//! use briquette_core::{Grid, Grouping, Rows};
//! use briquette_ops::fused::masked::{ScaledGrid, fake_quantize};
//!
//! let form = ScaledGrid { grid: Grid::INT8, grouping: Grouping::Row, rows: Rows::plain(1, 3) };
//! let values = fake_quantize(&[0.6, -0.4, 99.0], &[0, 1, 0], Some((&form, &[0.25], &[])));
//! assert_eq!(values, [0.5, 0.0, 31.75]); // 2 steps, dropped, and the largest code, 127
//! ```

mod fake_quantize;
mod filled;
pub mod ops;

pub use fake_quantize::{ScaledGrid, fake_quantize, keep_grads, learned_grads, scale_of};
