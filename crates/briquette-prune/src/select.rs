//! Which weights to drop, given their scores.

mod histogram;
mod n_of_m;
mod selector;
mod smallest;

pub use histogram::{Histogram, Threshold};
pub use n_of_m::{n_of_m, n_of_m_row};
pub use selector::Selector;
pub use smallest::{smallest, threshold_of};
