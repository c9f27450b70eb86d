//! Chooses integer grids for weights: bit width, range and grouping. Reads no files and does not depend on
//! burn.
//!
//! ```
//! use briquette_methods::quant::{ScaleSearch, Scheme};
//!
//! let scheme: Scheme = "int4-g128".parse().unwrap();
//! assert_eq!((scheme.weights.grid.n_bits(), scheme.weights.range), (4, ScaleSearch::AbsMax));
//! ```

pub mod activation_range;
mod allocate;
mod candidate;
pub mod channel_scales;
mod fit;
mod histogram;
mod input_scale;
pub mod range;
mod rounding;
mod scheme;
mod siblings;
mod unseen;

pub use activation_range::ActivationRange;
pub use allocate::allocate;
pub use candidate::{Candidate, KernelKind};
pub use fit::{Fitter, MaskedRows, RowInputs, fit};
pub use histogram::ActivationHistogram;
pub use input_scale::input_scale;
pub use range::ScaleSearch;
pub use rounding::Rounding;
pub use scheme::{Activations, QuantSpec, STEP_SIZES, Scheme, UnknownScheme, scaled_step, step_name};
