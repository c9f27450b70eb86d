//! Layers that share an input and are multiplied by one kernel: by the graph of the network, or by names.

use crate::plan::topology::Topology;
use briquette_graph::siblings::siblings;
use std::collections::{BTreeMap, HashMap};

/// Names of queries, keys and values, and of the halves of gated layers. `w1` and `w3` are from LLaMA's own
/// code.
const SIBLINGS: &[&[&str]] = &[
    &["query", "key", "value"],
    &["q_proj", "k_proj", "v_proj"],
    &["q_lin", "k_lin", "v_lin"],
    &["to_q", "to_k", "to_v"],
    &["q", "k", "v"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["wi_0", "wi_1"],
];

/// Returns the indices of names that belong together, one list for each group of two or more.
pub fn groups<'a>(names: impl IntoIterator<Item = &'a str>, topology: &Topology) -> Vec<Vec<usize>> {
    let Some(graph) = topology.graph() else { return groups_by_name(names) };
    let places: HashMap<&str, usize> = names.into_iter().enumerate().map(|(place, name)| (name, place)).collect();
    let of_group = |group: Vec<briquette_graph::WeightId>| -> Vec<usize> {
        group.iter().filter_map(|weight| places.get(graph.weights[weight.0].name.as_str()).copied()).collect()
    };
    siblings(graph).into_iter().map(of_group).filter(|group| group.len() > 1).collect()
}

/// Returns groups for a model without a graph.
pub fn groups_by_name<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Vec<usize>> {
    let mut found: BTreeMap<(&str, usize, &str), Vec<usize>> = BTreeMap::new();
    for (place, name) in names.into_iter().enumerate() {
        let (module, leaf) = name.rsplit_once('.').unwrap_or(("", name));
        let (parent, segment) = module.rsplit_once('.').unwrap_or(("", module));
        if let Some(row) = SIBLINGS.iter().position(|row| row.contains(&segment)) {
            found.entry((parent, row, leaf)).or_default().push(place);
        }
    }
    found.into_values().filter(|places| places.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_layers_of_one_parent_are_grouped() {
        let names = [
            "encoder.layer.0.attention.self.query.weight",
            "encoder.layer.0.attention.self.key.weight",
            "encoder.layer.1.attention.self.key.weight",
            "encoder.layer.0.attention.output.dense.weight",
            "model.layers.3.mlp.up_proj.weight",
            "model.layers.3.mlp.down_proj.weight",
            "model.layers.3.mlp.gate_proj.weight",
            "encoder.layer.0.attention.self.value.weight",
            "q.weight",
            "weight",
        ];
        assert_eq!(groups_by_name(names), [vec![0, 1, 7], vec![4, 6]]);
    }
}
