//! Chooses integer grids for weights: how many bits, which range, who shares a scale. It never reads files and does
//! not know burn.
//!
//! ```
//! use crate::quant::{ScaleSearch, Scheme};
//!
//! let scheme: Scheme = "int4-g128".parse().unwrap();
//! assert_eq!((scheme.weights.grid.n_bits(), scheme.weights.range), (4, ScaleSearch::AbsMax));
//! ```

mod allocate;
mod candidate;
mod fit;
pub mod range;
mod rounding;
mod scheme;
mod siblings;

pub use allocate::allocate;
pub use candidate::{Candidate, KernelKind};
pub use fit::{Fitter, MaskedRows, fit};
pub use range::ScaleSearch;
pub use rounding::Rounding;
pub use scheme::{Activations, QuantSpec, STEP_SIZES, Scheme, UnknownScheme, scaled_step, step_name};
