//! Checks that groups and patterns divide the rows of their tensors.

use super::{Plan, TensorPlan, exclude};
use crate::treatment::Cut;
use briquette_core::{Error, Grouping, Remedy, Result};
use briquette_formats::OutputFormat;

/// Groups smaller than this cost more in scales than they are worth.
const LEAST_GROUP: usize = 8;

impl Plan<'_> {
    /// Refuses groups and patterns that do not fit the rows of some tensors; the remedy has patterns that leave these out.
    ///
    /// # Errors
    /// Config.
    pub fn check_fit(&self) -> Result<()> {
        let misfits: Vec<(&TensorPlan, String)> =
            self.tensors.iter().filter_map(|tensor| Some((tensor, unfit(tensor)?))).collect();
        let Some((first, what)) = misfits.first() else { return Ok(()) };
        let others = match misfits.len() - 1 {
            0 => String::new(),
            n => format!(", nor those of {n} others"),
        };
        let names: Vec<&str> = misfits.iter().map(|(tensor, _)| tensor.info.name.as_str()).collect();
        let fit = self.tensors.iter().filter(|tensor| tensor.is_changed() && unfit(tensor).is_none());
        let fit: Vec<&str> = fit.map(|tensor| tensor.info.name.as_str()).collect();
        let is_group = first.quant.is_some_and(|quant| quant.spec.grouping.per_row(first.rows().n_cols).is_none());
        let fitting = if is_group { self.group_that_fits() } else { None };
        let instead = fitting.map_or("choose another".into(), |size| {
            format!("groups of {size} (such as int4-g{size}) divide all that are chosen: take those")
        });
        let message = format!(
            "{what} does not divide its {} columns{others}; {instead}, or leave these out",
            first.rows().n_cols
        );
        let remedy = Remedy::Exclude(exclude::patterns(&names, &fit));
        Err(Error::config(message).at(first.culprit()).with_remedy(remedy))
    }

    /// The largest group size that divides the columns of every tensor in groups, and is no larger than the recipe asks for.
    fn group_that_fits(&self) -> Option<usize> {
        let grouped = self.tensors.iter().filter_map(|tensor| match tensor.quant?.spec.grouping {
            Grouping::Group(size) => Some((size, tensor.rows().n_cols)),
            _ => None,
        });
        let (most, common) = grouped.reduce(|(one, a), (other, b)| (one.min(other), gcd(a, b)))?;
        largest_group(most, common, self.profile)
    }
}

/// The largest group size up to `most` that divides `common` and that the format can hold.
fn largest_group(most: usize, common: usize, profile: OutputFormat) -> Option<usize> {
    let is_fine = |size: &usize| profile.held_codes().is_none_or(|held| held.takes_group(*size));
    (LEAST_GROUP..=most.min(common)).rev().filter(is_fine).find(|&size| common.is_multiple_of(size))
}

/// The greatest common divisor.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Describes the group or pattern that does not divide a tensor's columns.
fn unfit(tensor: &TensorPlan) -> Option<String> {
    let n_cols = tensor.rows().n_cols;
    if let Some(quant) = tensor.quant.filter(|quant| quant.spec.grouping.per_row(n_cols).is_none()) {
        return Some(quant.spec.grouping.to_string());
    }
    match tensor.prune.map(|prune| prune.cut) {
        Some(Cut::NOfM { n, m }) if !n_cols.is_multiple_of(m) => Some(format!("the pattern {n}:{m}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_group_is_one_that_the_format_can_hold() {
        assert_eq!(largest_group(128, gcd(576, 1152), OutputFormat::Briquette), Some(96));
        assert_eq!(largest_group(128, 576, OutputFormat::CompressedTensors), Some(64));
        assert_eq!(largest_group(128, gcd(64, 96), OutputFormat::Dense), Some(32));
        assert_eq!(
            (largest_group(16, 29, OutputFormat::Briquette), largest_group(64, 4, OutputFormat::Briquette)),
            (None, None)
        );
    }
}
