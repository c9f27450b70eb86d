//! Updates weights to compensate for pruning and rounding.
//!
//! Each weight that is pruned or rounded causes an error at the layer's outputs; the weights processed later
//! are updated to compensate for it. This module opens no files, chooses no grids and does not depend on burn.
//!
//! Rows are outputs and columns are inputs: `[out, in]`, row-major. The input statistics are the Gram matrix `Σ
//! x xᵀ`, as in [`InputStats`](briquette_core::InputStats). [`InverseFactor`] is computed from it once for all
//! layers with the same inputs. [`gptq`] and [`sparsegpt`] update rows with it; [`admm`] solves for all weights
//! of a row together. [`gptq_on_trellis`] chooses codes that take fewer bits, and [`nearest_on_trellis`] only rounds to codes that do. [`row_factors`] fits the scales of rows to their codes.
//! [`mean_error`] is what a bias takes up (bias correction).
//! [`osscar`] chooses whole inputs to remove, and [`refit`] updates the weights of the remaining inputs.
//! If a matrix cannot be factorized, weights are rounded to nearest and pruned by magnitude, and [`FactorOutcome`] has the
//! reason. [`SignRound`] learns the rounding of whole blocks from gradients. [`correct`] moves the target of all of them, so that a layer compensates for the errors of the layers before it.
//!
//! Results do not depend on the number of threads. The functions use the rayon pool of the caller.
//!
//! ```
//! use briquette_core::{Affine, Grid, Grouping, QuantParams};
//! use briquette_methods::reconstruct::{FactorSpec, InverseFactor, gptq};
//! use std::convert::Infallible;
//!
//! let check_stop = || Ok::<(), Infallible>(());
//! // Two inputs that are nearly the same: the second weight compensates for the rounding error of the first.
//! let gram = [1.0, 0.99, 0.99, 1.0];
//! let Ok(factor) = InverseFactor::new(&gram, 1, &FactorSpec::default(), &check_stop);
//! let quant = QuantParams::new(Grid::INT8, Grouping::Row, 2, vec![Affine::symmetric(1.0)]);
//! let mut weights = [0.4, 0.4];
//! let Ok(()) = gptq(&mut weights, 2, &quant, None, &factor, &check_stop);
//! assert_eq!(weights, [0.0, 1.0]);
//! ```

mod admm;
mod cholesky;
mod correct;
mod factor;
mod gptq;
mod hessian;
mod mean_error;
mod osscar;
mod output_error;
mod product;
mod refit;
mod row_factors;
mod scale_search;
mod signround;
mod sparsegpt;
mod strip;
mod trellis;
mod trellis_nearest;
mod trellis_path;

pub use admm::admm;
pub use correct::{CrossInputs, correct};
pub use factor::{ColumnOrder, FactorOutcome, FactorSpec, Fallback, InverseFactor};
pub use gptq::gptq;
pub use mean_error::mean_error;
pub use osscar::osscar;
pub use output_error::output_error;
pub use refit::{Consumer, refit};
pub use row_factors::row_factors;
pub use scale_search::{gptq_with_scales, searches_scales};
pub use signround::SignRound;
pub use sparsegpt::sparsegpt;
pub use trellis::gptq_on_trellis;
pub use trellis_nearest::nearest_on_trellis;
