//! Checks that N:M patterns divide the rows of their tensors.

use super::{Plan, TensorPlan, exclude};
use crate::treatment::Cut;
use briquette_core::{Error, Remedy, Result};
use briquette_methods::prune::SparsityPattern;

impl Plan<'_> {
    /// Refuses N:M patterns that do not divide the rows of some tensors.
    ///
    /// # Errors
    /// Config: a pattern does not fit. The remedy excludes the tensors.
    pub fn check_fit(&self) -> Result<()> {
        let misfits: Vec<(&TensorPlan, String)> =
            self.tensors.iter().filter_map(|tensor| Some((tensor, unfit(tensor)?))).collect();
        let Some((first, what)) = misfits.first() else { return Ok(()) };
        let others = match misfits.len() - 1 {
            0 => String::new(),
            n => format!(", nor those of {n} other tensors"),
        };
        let names: Vec<&str> = misfits.iter().map(|(tensor, _)| tensor.info.name.as_str()).collect();
        let fit = self.tensors.iter().filter(|tensor| tensor.is_changed() && unfit(tensor).is_none());
        let fit: Vec<&str> = fit.map(|tensor| tensor.info.name.as_str()).collect();
        let n_cols = first.rows().n_cols;
        let message = format!(
            "{what} does not divide its {n_cols} columns{others}; choose another pattern, or exclude these tensors"
        );
        let remedy = Remedy::Exclude(exclude::patterns(&names, &fit));
        Err(Error::config(message).at(first.culprit()).with_remedy(remedy))
    }
}

/// Describes the N:M pattern that does not divide a tensor's columns.
fn unfit(tensor: &TensorPlan) -> Option<String> {
    match tensor.prune.map(|prune| prune.cut) {
        Some(Cut::Pattern(SparsityPattern::NOfM { n, m })) if !tensor.rows().n_cols.is_multiple_of(m) => {
            Some(format!("the pattern {n}:{m}"))
        }
        _ => None,
    }
}
