//! Graphs with fewer blocks.

#![allow(clippy::unwrap_used)]

use briquette_formats::Checkpoint;
use briquette_graph::{Extents, Graph, graph_of};
use std::path::Path;

fn graph(name: &str) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    graph_of(&Checkpoint::open(&path).unwrap(), Extents::default()).unwrap().unwrap()
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.weights.iter().map(|weight| weight.name.as_str()).collect()
}

#[test]
fn all_blocks_in_order_are_the_same_network() {
    for name in ["models/bert-tiny", "families/gpt2", "families/llama", "families/mpnet", "families/vit"] {
        let graph = graph(name);
        let all: Vec<usize> = (0..graph.blocks.len()).collect();
        let same = graph.with_blocks(&all).unwrap();
        same.lower().unwrap();
        assert_eq!(same.nodes.len(), graph.nodes.len(), "{name}");
        assert_eq!((same.n_parameters(), names(&same).len()), (graph.n_parameters(), names(&graph).len()));
    }
}

#[test]
fn chosen_blocks_are_renamed_to_the_first() {
    let graph = graph("families/gpt2");
    let last = graph.with_blocks(&[1]).unwrap();
    last.lower().unwrap();
    assert_eq!(last.blocks.len(), 1);
    assert!(last.weights.iter().any(|weight| weight.name.ends_with("h.0.attn.c_attn.weight")));
    assert!(!last.weights.iter().any(|weight| weight.name.contains("h.1.")));
    let turned = graph.with_blocks(&[1, 0]).unwrap();
    turned.lower().unwrap();
    assert_eq!(turned.n_parameters(), graph.n_parameters());
    let twice = graph.with_blocks(&[0, 0]).unwrap();
    twice.lower().unwrap();
    assert_eq!(twice.n_parameters(), graph.n_parameters());
}

#[test]
fn impossible_choices_are_refused() {
    let gpt2 = graph("families/gpt2");
    assert!(gpt2.with_blocks(&[]).unwrap_err().message.contains("found 0 blocks, expected 1 to 2"));
    assert!(gpt2.with_blocks(&[2]).unwrap_err().message.contains("found block 2, expected 0 to 1"));
    assert!(graph("digits").with_blocks(&[0]).unwrap_err().message.contains("no blocks"));
}

#[test]
fn blocks_of_one_row_can_be_chosen() {
    for (name, n) in [
        ("families/mpnet", Some(2)),
        ("families/albert", Some(2)),
        ("families/vit", Some(2)),
        ("families/t5", None),
        ("families/convnext", None),
        ("families/mobilenet_v2", None),
        ("families/efficientnet_lite", None),
        ("families/densenet", None),
        ("families/vgg", None),
        ("digits", None),
    ] {
        assert_eq!(graph(name).n_choosable_blocks(), n, "{name}");
    }
}
