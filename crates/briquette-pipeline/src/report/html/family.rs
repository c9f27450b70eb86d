//! Tensors that share a row of a plot, so that a model with many layers stays readable.

use crate::report::TensorReport;
use crate::report::groups::{MAX_SINGLES, without_numbers};
use std::collections::{BTreeMap, HashSet};

/// Largest number of rows of a plot.
pub(super) const MAX_ROWS: usize = 24;

/// One tensor, or all tensors whose names differ only in layer numbers.
#[derive(Debug)]
pub(super) struct TensorFamily<'a> {
    /// The name, with `*` for differing numbers.
    pub(super) label: String,
    /// The tensors, at least one.
    pub(super) members: Vec<&'a TensorReport>,
}

impl TensorFamily<'_> {
    /// Returns the bytes of all members before.
    pub(super) fn before_bytes(&self) -> u64 {
        self.members.iter().map(|tensor| tensor.before_bytes).sum()
    }

    /// Returns the bytes of all members after.
    pub(super) fn after_bytes(&self) -> u64 {
        self.members.iter().map(|tensor| tensor.after_bytes).sum()
    }

    /// Returns whether all members are from the original only.
    pub(super) fn is_gone(&self) -> bool {
        self.members.iter().all(|tensor| tensor.encoding.is_empty())
    }

    /// Returns `×12`, or nothing for a single tensor.
    pub(super) fn note(&self) -> String {
        if !self.label.contains('*') {
            return String::new();
        }
        // A name occurs twice if the original's tensor has another shape: one is new, the other gone.
        let gone = self.members.iter().filter(|tensor| tensor.encoding.is_empty());
        let gone: HashSet<&str> = gone.map(|tensor| tensor.name.as_str()).collect();
        let is_twice = |tensor: &&&TensorReport| !tensor.encoding.is_empty() && gone.contains(tensor.name.as_str());
        let n_twice = if gone.is_empty() { 0 } else { self.members.iter().filter(is_twice).count() };
        match self.members.len() - n_twice {
            1 => String::new(),
            n_names => format!("×{n_names}"),
        }
    }
}

/// Returns families in the order of their first members. A small model has one family per tensor.
pub(super) fn families(tensors: &[TensorReport]) -> Vec<TensorFamily<'_>> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let (mut families, mut without) = (Vec::<TensorFamily>::new(), String::new());
    for tensor in tensors {
        let label =
            if tensors.len() > MAX_SINGLES { without_numbers(&tensor.name, &mut without) } else { &tensor.name };
        // Most tensors belong to a known family and need no new label.
        let place = places.get(label).copied().unwrap_or_else(|| {
            places.insert(label.to_string(), families.len());
            families.push(TensorFamily { label: label.to_string(), members: Vec::new() });
            families.len() - 1
        });
        families[place].members.push(tensor);
    }
    for family in &mut families {
        if let [only] = family.members[..] {
            family.label = only.name.to_string();
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn layers_share_a_row_and_single_tensors_keep_their_names() {
        let mut report = sample::of_layers(12);
        report.tensors.push(sample::tensor("head.0.weight".into(), 0));
        let found = families(&report.tensors);
        let labels: Vec<&str> = found.iter().map(|family| family.label.as_str()).collect();
        assert_eq!(labels[0], "encoder.layer.*.attention.query.weight");
        assert_eq!((labels.len(), labels[3]), (4, "head.0.weight"));
        assert_eq!(families(&sample::of_layers(3).tensors).len(), 9);
    }
}
