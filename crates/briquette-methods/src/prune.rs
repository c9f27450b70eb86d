//! Chooses which weights to drop: a score says how much a weight matters, a budget how many may stay, a selection
//! which; [`low_rank`] drops singular values instead. It never reads files and does not know burn.
//!
//! Scores are f32, at least 0; smaller means safer to drop. They are compared as the bits of their magnitude, which
//! order as the floats do.
//!
//! ```
//! use crate::prune::{Ratio, score, select};
//!
//! let weights = [0.5_f32, -0.1, 0.3, -0.2];
//! let n_drop = Ratio::new(0.5).unwrap().of(weights.len());
//! let mask = select::smallest(score::magnitude(&weights), 1, 4, n_drop);
//! assert_eq!((0..4).map(|col| mask.keeps(0, col)).collect::<Vec<_>>(), [true, false, true, false]);
//! ```

pub mod budget;
pub mod low_rank;
mod reconstruction;
mod schedule;
pub mod score;
pub mod select;

pub use budget::Ratio;
pub use reconstruction::Reconstruction;
pub use schedule::Schedule;
pub use score::Score;
pub use select::{Histogram, Threshold};
