//! Chooses which weights to prune.
//!
//! A score measures how much a weight matters, a budget sets how many weights are dropped, and a selection
//! returns the mask. [`low_rank`] drops singular values instead of weights, and [`units`] whole channels and heads. This module reads no files and does
//! not depend on burn.
//!
//! Scores are f32 and at least 0; a smaller score means that the weight is safer to drop. They are compared by
//! the bits of their magnitude, which have the same order as the floats.
//!
//! ```
//! use briquette_methods::prune::{Ratio, score, select};
//!
//! let weights = [0.5_f32, -0.1, 0.3, -0.2];
//! let n_drop = Ratio::new(0.5).unwrap().of(weights.len());
//! let mask = select::smallest(score::magnitude(&weights), 1, 4, n_drop);
//! assert_eq!((0..4).map(|col| mask.keeps(0, col)).collect::<Vec<_>>(), [true, false, true, false]);
//! ```

pub mod budget;
pub mod low_rank;
mod pattern;
mod reconstruction;
mod schedule;
pub mod score;
pub mod select;
pub mod units;

pub use budget::Ratio;
pub use pattern::SparsityPattern;
pub use reconstruction::Reconstruction;
pub use schedule::Schedule;
pub use score::Score;
pub use select::{Histogram, Threshold};
