//! The choices of a budget: a scheme, optionally with pruning.

use crate::parse::prune::{PruneStage, PruneTarget, RawPrune};
use crate::parse::ranges;
use crate::parse::words::parse_scheme;
use briquette_core::{Error, Result};
use briquette_methods::prune::{Ratio, SparsityPattern};
use briquette_methods::quant::{Activations, Scheme};

/// The recipe key of the choices.
const KEY: &str = "budget.choices";

/// A scheme that a budget may choose for a tensor, optionally with pruning.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemeChoice {
    /// The name in recipes: `int8`, `int8+0.5`, `int4-g64+2:4`.
    pub name: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The weights to prune first, by magnitude; `None` if all are kept.
    pub pruned: Option<SparsityPattern<Ratio>>,
}

impl SchemeChoice {
    /// Parses a choice.
    ///
    /// # Errors
    /// Config: the scheme is unknown or has no step size, or the pruning part is invalid.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let scheme = parse_scheme(KEY, scheme_name(name))?;
        if scheme.is_open() {
            return Err(Error::config(format!(
                "{KEY}: found {name:?}, expected \"step\"; set step-dynamic as the scheme of the stage"
            )));
        }
        if scheme.activations == Activations::Static {
            let message =
                "budgets do not choose static activations; use int8-static as the scheme of a stage without a budget";
            return Err(Error::config(format!("{KEY}: {name:?}: {message}")));
        }
        let pruned = prune_keys(name)?.map(|keys| PruneStage::from_raw(&keys, None)).transpose();
        let pruned = pruned.map_err(|error| Error::config(format!("{KEY}: {name:?}: {}", error.message)))?;
        let pruned = match pruned.map(|stage| stage.target) {
            Some(PruneTarget::Layer(pattern)) => Some(pattern),
            None => None,
            Some(PruneTarget::Global(_) | PruneTarget::Owl(_)) => return Err(Error::bug("a choice with a scope")),
        };
        Ok(Self { name: name.into(), scheme, pruned })
    }
}

/// Returns the scheme name of a choice.
pub(crate) fn scheme_name(choice: &str) -> &str {
    choice.split_once('+').map_or(choice, |(scheme, _)| scheme)
}

/// Returns the prune stage keys of a choice; `None` if the choice does not prune.
///
/// # Errors
/// Config: the pruning part is neither a share nor an N:M pattern.
pub(crate) fn prune_keys(choice: &str) -> Result<Option<RawPrune>> {
    let Some((_, how)) = choice.split_once('+') else { return Ok(None) };
    if how.contains(':') {
        return Ok(Some(RawPrune { pattern: Some(how.into()), ..RawPrune::default() }));
    }
    let range = ranges::of("stage.sparsity").ok_or_else(|| Error::bug("shares without a range"))?;
    let share = range.parse(how).map_err(|expected| {
        Error::config(format!(
            "{KEY}: found {choice:?}, {expected} or N:M after \"+\", as in \"int8+0.5\" or \"int8+2:4\""
        ))
    })?;
    Ok(Some(RawPrune { sparsity: Some(share), ..RawPrune::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_a_scheme_and_a_sparsity() {
        let of = |name: &str| SchemeChoice::parse(name).unwrap();
        assert_eq!((of("int8").pruned, of("int8").scheme), (None, Scheme::INT8));
        assert_eq!(of("int4-g64+2:4").pruned, Some(SparsityPattern::NOfM { n: 2, m: 4 }));
        assert_eq!(of("int4-g64+2:4").scheme, of("int4-g64").scheme);
        assert!(matches!(of("int8+0.5").pruned, Some(SparsityPattern::Unstructured(ratio)) if ratio.get() == 0.5));
        let cases = [
            ("int8+1.0", "\"int8+1.0\", expected a number from 0 to below 1"),
            ("int8+half", "expected a number from 0 to below 1"),
            ("int8+", "expected a number"),
            ("int8+4:2", "pattern: found \"4:2\""),
            ("int8+a:b", "pattern: found \"a:b\""),
            ("int9+0.5", "int9"),
            ("step+0.5", "expected \"step\""),
            ("int8-static", "budgets do not choose static activations"),
        ];
        for (name, expected) in cases {
            let error = SchemeChoice::parse(name).unwrap_err().to_string();
            assert!(error.starts_with("budget.choices: ") && error.contains(expected), "{name}: {error}");
        }
    }
}
