//! Weights that make up for what is dropped or rounded: each weight that is settled leaves an error at the layer's outputs, and those
//! that come later are moved against it. It never opens a file, and neither chooses grids nor knows burn.
//!
//! Rows are outputs, columns inputs: `[out, in]`, row-major. What is known of the inputs is their Gram matrix `Σ x xᵀ`, as
//! [`InputStats`](briquette_core::InputStats) holds it. [`InverseFactor`] is made of it once for all layers that see these inputs;
//! [`gptq`] and [`sparsegpt`] move rows by it; [`admm`] solves for all weights of a row at once. If a matrix cannot be factorized, weights are rounded to nearest and dropped by magnitude,
//! and [`FactorOutcome`] has the reason.
//!
//! Results do not depend on how many threads there are. Threads are those of the rayon pool that a function is called in.
//!
//! ```
//! use briquette_core::{Affine, Grid, Grouping, QuantParams};
//! use crate::reconstruct::{FactorSpec, InverseFactor, gptq};
//! use std::convert::Infallible;
//!
//! let go_on = || Ok::<(), Infallible>(());
//! // Two inputs that are nearly the same: what rounding the first one's weight adds, the second one's takes away.
//! let gram = [1.0, 0.99, 0.99, 1.0];
//! let Ok(factor) = InverseFactor::new(&gram, 1, &FactorSpec::default(), &go_on);
//! let quant = QuantParams::new(Grid::INT8, Grouping::Row, 2, vec![Affine::symmetric(1.0)]);
//! let mut weights = [0.4, 0.4];
//! let Ok(()) = gptq(&mut weights, 2, &quant, None, &factor, &go_on);
//! assert_eq!(weights, [0.0, 1.0]);
//! ```

mod admm;
mod cholesky;
mod factor;
mod gptq;
mod hessian;
mod output_error;
mod product;
mod sparsegpt;
mod sparsity;
mod strip;

pub use admm::admm;
pub use factor::{ColumnOrder, FactorOutcome, FactorSpec, Fallback, InverseFactor};
pub use gptq::gptq;
pub use output_error::output_error;
pub use sparsegpt::sparsegpt;
pub use sparsity::DropRule;
