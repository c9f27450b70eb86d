//! Rules for pruning and quantizing parameters, chosen by glob.

mod chosen;
mod prune;
mod quantize;
mod scoring;

use briquette_core::Rows;
pub(crate) use chosen::Chosen;
pub(crate) use prune::Amount;
pub use prune::{Prune, Scope};
pub use quantize::Quantize;
pub(crate) use scoring::Scoring;
pub use scoring::WeightRow;

/// The rules that apply to one parameter, by their indices.
#[derive(Debug, Clone)]
pub(crate) struct RuleTarget {
    /// The path of the parameter's layer, which statistics of inputs are listed under.
    pub(crate) layer: String,
    pub(crate) rows: Rows,
    pub(crate) prune: Option<usize>,
    pub(crate) quantize: Option<usize>,
    /// The parameter's index in its module, so that each parameter gets other random scores.
    pub(crate) index: usize,
}

/// All rules of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) prune: &'a [Prune],
    pub(crate) quantize: &'a [Quantize],
}
