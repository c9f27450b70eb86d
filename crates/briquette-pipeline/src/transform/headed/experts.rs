//! A model without some of its experts.

use super::HeadedModel;
use briquette_core::{Error, Result};
use briquette_formats::TensorInfo;
use briquette_graph::families::shrunk_config::{ConfigChange, with_experts};
use briquette_graph::mixtures::{ExpertMixture, mixtures};
use std::collections::BTreeSet;

impl HeadedModel {
    /// Returns the model without these experts of each mixture; later experts take their names, and the router loses their rows.
    ///
    /// # Errors
    /// - Config: the family would read another network from the remaining tensors.
    /// - Input: a router has no row for each expert.
    pub(in crate::transform) fn without_experts(self, removed: &[BTreeSet<usize>]) -> Result<Self> {
        let found = mixtures(&self.graph);
        let (mut infos, mut places, mut kept_rows) = (Vec::new(), Vec::new(), self.kept_rows.clone());
        for (index, info) in self.infos.iter().enumerate() {
            let Some(KeptTensor { name, rows }) = kept(info, (&found, removed), &self)? else { continue };
            let mut shape = info.shape.0.clone();
            if let Some(rows) = &rows {
                shape[0] = rows.len();
            }
            infos.push(TensorInfo::checked(name, info.dtype, shape)?);
            places.push(self.places[index]);
            kept_rows.extend(rows.map(|rows| (self.places[index], rows)));
        }
        let left = |(mixture, removed): (&ExpertMixture, &BTreeSet<usize>)| mixture.experts.len() - removed.len();
        let left: Vec<usize> = found.iter().zip(removed).map(left).collect();
        let equal = left.first().copied().filter(|first| left.iter().all(|other| other == first));
        let ConfigChange { values, lost } = equal.map_or_else(ConfigChange::default, |n| with_experts(&self.config, n));
        let lost = self.lost.iter().cloned().chain(lost).collect();
        let after = Self { kept_rows, lost, ..self.changed(infos, places, values)? };
        let n_experts: Vec<usize> = mixtures(&after.graph).iter().map(|mixture| mixture.experts.len()).collect();
        match n_experts == left {
            true => Ok(after),
            false => {
                let message = format!("found {n_experts:?} experts after the change, expected {left:?}");
                Err(Error::config(message).at("shrink"))
            }
        }
    }
}

/// A tensor of the new model.
struct KeptTensor {
    name: String,
    /// The rows that remain, if it is a router's.
    rows: Option<Vec<usize>>,
}

/// Returns what remains of a tensor; `None` if its expert is removed.
fn kept(
    info: &TensorInfo,
    (found, removed): (&[ExpertMixture], &[BTreeSet<usize>]),
    model: &HeadedModel,
) -> Result<Option<KeptTensor>> {
    for (mixture, removed) in found.iter().zip(removed) {
        let n = mixture.experts.len();
        if let Some((expert, rest)) = expert_of(&info.name, &mixture.path) {
            let new = expert - removed.range(..expert).count();
            let name = format!("{}.{new}.{rest}", mixture.path);
            return Ok((!removed.contains(&expert)).then_some(KeptTensor { name, rows: None }));
        }
        let is_router = model.graph.weight(&info.name).is_some_and(|weight| mixture.router.contains(&weight));
        if is_router && !removed.is_empty() {
            if info.shape.0.first() != Some(&n) {
                let message = format!("has shape {}, expected a row for each of {n} experts", info.shape);
                return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
            }
            let rows = (0..n).filter(|expert| !removed.contains(expert)).collect();
            return Ok(Some(KeptTensor { name: info.name.to_string(), rows: Some(rows) }));
        }
    }
    Ok(Some(KeptTensor { name: info.name.to_string(), rows: None }))
}

/// Returns the number of the expert that a tensor belongs to, and its name there.
fn expert_of<'n>(name: &'n str, path: &str) -> Option<(usize, &'n str)> {
    let (number, rest) = name.strip_prefix(path)?.strip_prefix('.')?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::expert_of;

    #[test]
    fn names_of_experts_have_their_numbers() {
        assert_eq!(expert_of("a.experts.12.w1.weight", "a.experts"), Some((12, "w1.weight")));
        assert_eq!(expert_of("a.experts.x.w1", "a.experts"), None);
        assert_eq!(expert_of("a.gate.weight", "a.experts"), None);
    }
}
