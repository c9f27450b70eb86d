//! Folds a graph: equal blocks that follow each other are one section.

use crate::blocks::outer_blocks;
use crate::graph::{Block, Graph, Operand};
use crate::lower::Lowered;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::ops::Range;

/// A part of a graph: nodes outside of blocks, or blocks with equal contents that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The nodes of each block; one range of nodes outside of blocks.
    pub parts: Vec<Range<usize>>,
    /// The names of the blocks; empty for nodes outside of blocks.
    pub blocks: Vec<String>,
    /// The index of an earlier section whose blocks are equal to these.
    pub same_as: Option<usize>,
}

/// The sections of a graph, in the order of nodes.
///
/// Two blocks are equal if they have equal operations, shapes, types and connections, and names that differ only in the name of the
/// block. A block within another block is a part of it.
///
/// # Panics
/// If the graph was not lowered to `lowered`.
pub fn sections(graph: &Graph, lowered: &Lowered) -> Vec<Section> {
    let mut found: Vec<Section> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut last = None;
    let mut next = 0;
    for block in outer_blocks(graph) {
        if next < block.nodes.start {
            found.push(Section {
                parts: std::iter::once(next..block.nodes.start).collect(),
                blocks: Vec::new(),
                same_as: None,
            });
            last = None;
        }
        next = block.nodes.end;
        let contents = contents(graph, lowered, block);
        if last.as_ref() == Some(&contents) {
            let section = found.last_mut().expect("the block before is in a section");
            section.parts.push(block.nodes.clone());
            section.blocks.push(block.name.clone());
            continue;
        }
        let same_as = known.get(&contents).copied();
        known.entry(contents.clone()).or_insert(found.len());
        found.push(Section { parts: vec![block.nodes.clone()], blocks: vec![block.name.clone()], same_as });
        last = Some(contents);
    }
    if next < graph.nodes.len() {
        found.push(Section {
            parts: std::iter::once(next..graph.nodes.len()).collect(),
            blocks: Vec::new(),
            same_as: None,
        });
    }
    found
}

/// Everything that makes two blocks equal, as text. Values are numbered in the order of their first use.
fn contents(graph: &Graph, lowered: &Lowered, block: &Block) -> String {
    let own = |name: &str| name.strip_prefix(&block.name).unwrap_or(name).to_string();
    let mut numbers = HashMap::new();
    let mut text = String::new();
    for node in &graph.nodes[block.nodes.clone()] {
        // Writing to a string does not fail.
        let _ = write!(text, "{} {:?}", own(&node.name), node.op);
        for operand in &node.inputs {
            let _ = match operand {
                Operand::Weight(id) => {
                    let weight = &graph.weights[id.0];
                    write!(text, " {} {} {} {:?}", own(&weight.name), weight.dtype, weight.shape, weight.layout)
                }
                Operand::Value(value) => {
                    let next = numbers.len();
                    let number = numbers.entry(*value).or_insert(next);
                    write!(text, " {number} {:?}", lowered.shapes[value.0])
                }
            };
        }
        for value in &node.outputs {
            let next = numbers.len();
            let number = numbers.entry(*value).or_insert(next);
            let _ = write!(text, " -> {number} {:?}", lowered.shapes[value.0]);
        }
        text.push('\n');
    }
    text
}
