//! Compares roles, siblings and heads from graphs with the tables of names, for each model in `fixtures` with a family.

#![allow(clippy::unwrap_used)]

use briquette_core::{DType, OutputAxis, Role};
use briquette_formats::model_config::ModelFamily;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_graph::families::build;
use briquette_graph::roles::roles;
use briquette_graph::siblings::siblings;
use briquette_graph::ties::heads;
use briquette_graph::{Config, Extents, Graph, Headers, graph_of};
use briquette_recipe::plan::role::RoleContext;
use briquette_recipe::plan::{heads as head_names, siblings as sibling_names};
use briquette_writer::{Stop, ties};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checkpoints whose family is known.
const MODELS: &[&str] = &[
    "digits",
    "digits-sharded",
    "digits.pt",
    "models/bert-tiny",
    "models/llama-qwen",
    "models/llama-tied",
    "models/llama-untied",
    "models/resnet18-tiny.pth",
    "models/resnet50-tiny.safetensors",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn models() -> impl Iterator<Item = (&'static str, Checkpoint, Graph)> {
    MODELS.iter().map(|name| {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let graph = graph_of(&checkpoint, Extents::default()).unwrap().expect(name);
        (*name, checkpoint, graph)
    })
}

/// Compares the role and output axis of every tensor.
fn check_roles(model: &str, tensors: &[TensorInfo], graph: &Graph, context: &RoleContext) {
    let roles = roles(graph);
    for info in tensors {
        let known = context.of(info);
        match graph.weight(&info.name) {
            Some(weight) => {
                let found = roles[weight.0];
                // A head that is stored beside its embedding is one weight of the graph.
                let is_alias = graph.weights[weight.0].name != info.name;
                assert!(is_alias || found.role == known.role, "{model}: {}: {found:?}, {known:?}", info.name);
                if matches!(known.role, Role::Linear | Role::Conv) {
                    assert!(is_alias || found.axis == known.axis, "{model}: {}: {found:?}, {known:?}", info.name);
                }
            }
            None => {
                assert_eq!(known.role, Role::Other, "{model}: {} is in no node", info.name);
                assert!(graph.unused.contains(&info.name));
            }
        }
    }
}

/// Compares groups of linear layers with one input.
fn check_siblings(model: &str, tensors: &[TensorInfo], graph: &Graph) {
    let names: Vec<&str> =
        tensors.iter().map(|info| info.name.as_str()).filter(|name| name.ends_with(".weight")).collect();
    let by_name: BTreeSet<BTreeSet<&str>> = sibling_names::groups(names.iter().copied())
        .iter()
        .map(|group| group.iter().map(|&at| names[at]).collect())
        .collect();
    let by_graph: BTreeSet<BTreeSet<&str>> = siblings(graph)
        .iter()
        .map(|group| group.iter().map(|weight| graph.weights[weight.0].name.as_str()).collect())
        .collect();
    assert_eq!(by_graph, by_name, "{model}");
}

#[test]
fn roles_and_siblings_equal_those_by_name() {
    for (model, checkpoint, graph) in models() {
        let context = RoleContext::of_model(&checkpoint, checkpoint.layout(), &[]).unwrap();
        check_roles(model, checkpoint.tensors(), &graph, &context);
        check_siblings(model, checkpoint.tensors(), &graph);
    }
}

#[test]
fn heads_and_ties_equal_those_by_name_and_bytes() {
    let mut n_heads = 0;
    for (model, checkpoint, graph) in models() {
        let by_graph: BTreeSet<String> =
            heads(&graph).iter().map(|weight| graph.weights[weight.0].name.clone()).collect();
        assert_eq!(by_graph, head_names::names(&checkpoint, &[]).unwrap(), "{model}");
        n_heads += by_graph.len();
        let tensors = checkpoint.tensors();
        let stored = |name: &String| tensors.iter().position(|info| info.name == *name);
        for (index, first) in ties::ties_of(&checkpoint, &Stop::default()).unwrap() {
            assert_eq!(graph.weight(&tensors[index].name), graph.weight(&tensors[first].name), "{model}");
        }
        let n_stored = graph.weights.iter().flat_map(|weight| &weight.aliases).filter_map(stored).count();
        assert_eq!(n_stored, ties::ties_of(&checkpoint, &Stop::default()).unwrap().len(), "{model}");
    }
    assert_eq!(n_heads, 2, "llama-tied and llama-qwen have no head of their own");
}

/// The tensors that transformers lists for a family: `fixtures/roles`.
fn listed(family: &str) -> (Vec<TensorInfo>, serde_json::Value) {
    let text = std::fs::read_to_string(fixture(&format!("roles/{family}.txt"))).unwrap();
    let (config, lines) = text.split_once('\n').unwrap();
    let tensor = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let shape: Vec<usize> = serde_json::from_str(fields[1]).unwrap();
        TensorInfo::checked(fields[0].into(), DType::F32, shape).unwrap()
    };
    (lines.lines().map(tensor).collect(), serde_json::from_str(config).unwrap())
}

#[test]
fn families_of_transformers_have_roles_and_siblings_by_name() {
    for (family, heads, width) in [("bert", 4, 6), ("llama", 2, 20), ("mistral", 2, 20), ("qwen2", 4, 6)] {
        let (tensors, mut config) = listed(family);
        let known = ModelFamily::read(&config);
        config["num_attention_heads"] = heads.into();
        config["head_dim"] = width.into();
        let config = Config::parse(Some(config.to_string().as_bytes())).unwrap();
        let graph = build(&Headers::new(&tensors, None), &config, Extents::default()).unwrap().unwrap();
        check_roles(family, &tensors, &graph, &RoleContext::new(&tensors, known, None, &[]));
        check_siblings(family, &tensors, &graph);
    }
}

#[test]
fn matrices_that_burn_stores_turned_have_their_outputs_last() {
    let checkpoint = Checkpoint::open(&fixture("digits")).unwrap();
    let mut tensors = checkpoint.tensors().to_vec();
    for info in tensors.iter_mut().filter(|info| info.shape.rank() == 2) {
        info.shape.0.reverse();
    }
    let headers = Headers::new(&tensors, Some(WeightLayout::Burn));
    let graph = build(&headers, &Config::parse(None).unwrap(), Extents::default()).unwrap().unwrap();
    let fc1 = graph.weight("fc1.weight").unwrap();
    assert_eq!(roles(&graph)[fc1.0].axis, OutputAxis::Last);
    let context = RoleContext::new(&tensors, ModelFamily::default(), Some(WeightLayout::Burn), &[]);
    check_roles("digits as burn stores it", &tensors, &graph, &context);
}
