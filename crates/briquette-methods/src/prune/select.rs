//! Selections: which weights to drop, given their scores.

mod bracket;
mod histogram;
mod n_of_m;
mod of_each;
mod scores;
mod search;
mod selector;
mod smallest;
mod threshold;

pub use bracket::{Bracket, Tally};
pub use histogram::Histogram;
pub use n_of_m::{n_of_m, n_of_m_row};
pub use of_each::{smallest_of_columns, smallest_of_each};
pub use scores::Scores;
pub use search::{PoolThreshold, ScorePool, threshold_of_pool};
pub use selector::Selector;
pub use smallest::{smallest, threshold_of};
pub use threshold::Threshold;
