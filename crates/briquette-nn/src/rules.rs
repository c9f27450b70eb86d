//! Rules for pruning and quantizing parameters, chosen by glob.

mod chosen_paths;
mod fingerprint;
mod prune;
mod quantize;
mod scoring;

use briquette_core::Rows;
pub(crate) use chosen_paths::ChosenPaths;
pub(crate) use fingerprint::Fingerprint;
pub(crate) use prune::Amount;
pub use prune::{Prune, Scope};
pub use quantize::Quantize;
pub(crate) use scoring::Scoring;
pub use scoring::WeightRow;

/// The rules that apply to one parameter, by index.
#[derive(Debug, Clone)]
pub(crate) struct RuleTarget {
    /// Path of the layer, the key of its input statistics.
    pub(crate) layer: String,
    /// Path whose weights are decided; differs from the parameter's own if two fields share a parameter.
    pub(crate) main: String,
    pub(crate) rows: Rows,
    pub(crate) prune: Option<usize>,
    pub(crate) quantize: Option<usize>,
    /// Index in the module, which varies the random scores.
    pub(crate) index: usize,
}

/// All rules of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) prune: &'a [Prune],
    pub(crate) quantize: &'a [Quantize],
}

impl Rules<'_> {
    /// Returns the fingerprint of the rules for a parameter, also if no rule applies.
    pub(crate) fn fingerprint(&self, target: Option<&RuleTarget>) -> Fingerprint {
        let Some(target) = target else { return Fingerprint::of("") };
        let prune = target.prune.map(|rule| self.prune[rule].content(&target.layer));
        let quantize = target.quantize.map(|rule| self.quantize[rule].content());
        Fingerprint::of(&format!("{}; {}", prune.unwrap_or_default(), quantize.unwrap_or_default()))
    }

    /// Returns a short description of the rules for a parameter.
    pub(crate) fn in_words(&self, target: &RuleTarget) -> String {
        let prune = target.prune.map(|rule| self.prune[rule].in_words());
        let quantize = target.quantize.map(|rule| self.quantize[rule].in_words());
        prune.into_iter().chain(quantize).collect::<Vec<_>>().join(", ")
    }
}
