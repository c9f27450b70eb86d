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
use briquette_recipe::plan::topology::Topology;
use briquette_recipe::plan::{heads as head_names, siblings as sibling_names};
use briquette_writer::{Stop, ties};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
                // GPT-2's `ln_f.bias` does not say that it is a norm's.
                let is_shift = (found.role, known.role) == (Role::Norm, Role::Bias);
                assert!(
                    is_alias || is_shift || found.role == known.role,
                    "{model}: {}: {found:?}, {known:?}",
                    info.name
                );
                if matches!(known.role, Role::Linear | Role::Conv) {
                    assert!(is_alias || found.axis == known.axis, "{model}: {}: {found:?}, {known:?}", info.name);
                }
            }
            None => {
                assert_eq!(known.role, Role::Other, "{model}: {} is in no node", info.name);
                assert!(graph.unused.iter().any(|unused| *unused == info.name));
            }
        }
    }
}

/// Compares groups of linear layers with one input.
fn check_siblings(model: &str, tensors: &[TensorInfo], graph: &Graph) {
    let names: Vec<&str> =
        tensors.iter().map(|info| info.name.as_str()).filter(|name| name.ends_with(".weight")).collect();
    let by_name: BTreeSet<BTreeSet<&str>> = sibling_names::groups_by_name(names.iter().copied())
        .iter()
        .map(|group| group.iter().map(|&at| names[at]).collect())
        .collect();
    let by_graph: BTreeSet<BTreeSet<&str>> = siblings(graph)
        .iter()
        .map(|group| group.iter().map(|weight| graph.weights[weight.0].name.as_str()).collect())
        .collect();
    assert_eq!(by_graph, by_name, "{model}");
}

/// The roles by names and shapes alone.
fn by_names(checkpoint: &Checkpoint) -> RoleContext<'_> {
    let family = ModelFamily::of(checkpoint).unwrap();
    RoleContext::new(checkpoint.tensors(), family, checkpoint.layout(), &[])
}

#[test]
fn roles_and_siblings_equal_those_by_name() {
    for (model, checkpoint, graph) in models() {
        check_roles(model, checkpoint.tensors(), &graph, &by_names(&checkpoint));
        check_siblings(model, checkpoint.tensors(), &graph);
    }
}

#[test]
fn plans_use_the_graph_and_keep_the_roles_that_names_gave() {
    for (model, checkpoint, _) in models() {
        let topology = Topology::of(&checkpoint, checkpoint.layout()).unwrap();
        let layout = checkpoint.layout();
        let (by_names, context) =
            (by_names(&checkpoint), RoleContext::of_model(&checkpoint, &topology, layout, &[]).unwrap());
        let weights = checkpoint.tensors().iter().filter(|info| info.dtype.is_weight());
        assert_eq!(weights.filter(|info| !context.is_by_graph(info)).count(), 0, "{model}");
        for info in checkpoint.tensors() {
            let (found, expected) = (context.of(info), by_names.of(info));
            assert_eq!((found.role, found.axis), (expected.role, expected.axis), "{model}: {}", info.name);
            assert_eq!(found.is_plain_linear(), expected.is_plain_linear(), "{model}: {}", info.name);
        }
        let names = || checkpoint.tensors().iter().map(|info| info.name.as_str());
        let weights = |groups: Vec<Vec<usize>>| -> BTreeSet<BTreeSet<usize>> {
            let of_weights = |group: &Vec<usize>| names().nth(group[0]).unwrap().ends_with(".weight");
            groups.into_iter().filter(of_weights).map(|group| group.into_iter().collect()).collect()
        };
        let (found, expected) = (sibling_names::groups(names(), &topology), sibling_names::groups_by_name(names()));
        assert_eq!(weights(found), weights(expected), "{model}");
    }
}

#[test]
fn names_decide_where_config_json_contradicts_or_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let copied = |config: Option<&str>| {
        let from = fixture("models/bert-tiny");
        std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let path = folder.path().join("config.json");
        match config {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let topology = Topology::of(&checkpoint, None).unwrap();
        let context = RoleContext::of_model(&checkpoint, &topology, None, &[]).unwrap();
        for info in checkpoint.tensors() {
            assert_eq!(context.of(info), by_names(&checkpoint).of(info), "{}", info.name);
        }
        let Topology::Names(why) = topology else { panic!("found a graph") };
        why
    };
    let config = std::fs::read_to_string(fixture("models/bert-tiny/config.json")).unwrap();
    let mut lies: serde_json::Value = serde_json::from_str(&config).unwrap();
    lies["hidden_size"] = 48.into();
    let why = copied(Some(&lies.to_string())).unwrap();
    assert!(why.starts_with("config.json: hidden_size is 48, but word_embeddings.weight has 32"), "{why}");
    lies["hidden_size"] = 32.into();
    lies["num_attention_heads"] = 5.into();
    assert!(copied(Some(&lies.to_string())).unwrap().contains("5 heads (num_attention_heads) do not divide"));
    assert_eq!(copied(Some(r#"{"model_type": "yolo"}"#)), None);
    assert!(copied(None).unwrap().contains("hidden_size is missing"));
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
    for (family, heads, width) in [
        ("albert", 4, 6),
        ("bert", 4, 6),
        ("distilbert", 4, 6),
        ("electra", 4, 6),
        ("gemma2", 4, 10),
        ("gpt2", 4, 6),
        ("llama", 2, 20),
        ("mistral", 2, 20),
        ("mpnet", 4, 6),
        ("opt", 4, 6),
        ("phi3", 4, 6),
        ("qwen2", 4, 6),
        ("qwen3", 4, 10),
        ("roberta", 4, 6),
    ] {
        let (tensors, mut config) = listed(family);
        let known = ModelFamily::read(&config);
        let keys = [("num_attention_heads", heads), ("n_heads", heads), ("n_head", heads), ("head_dim", width)];
        for (key, value) in [&keys[..], &[("dim", 24), ("n_embd", 24), ("num_hidden_layers", 1)]].concat() {
            config[key] = value.into();
        }
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
        Arc::make_mut(&mut info.shape).0.reverse();
    }
    let headers = Headers::new(&tensors, Some(WeightLayout::Burn));
    let graph = build(&headers, &Config::parse(None).unwrap(), Extents::default()).unwrap().unwrap();
    let fc1 = graph.weight("fc1.weight").unwrap();
    assert_eq!(roles(&graph)[fc1.0].axis, OutputAxis::Last);
    let context = RoleContext::new(&tensors, ModelFamily::default(), Some(WeightLayout::Burn), &[]);
    check_roles("digits as burn stores it", &tensors, &graph, &context);
}
