//! The diagram of a graph, in which equal blocks appear once.

use super::items::GraphItem;
use crate::report::figures::{DiagramNode, DiagramSection, DiagramWeight, GraphDiagram, GraphTotals};
use crate::report::groups::label;
use briquette_core::Role;
use briquette_graph::fold::{Section, sections};
use briquette_graph::roles::roles;
use briquette_graph::{Graph, Lowered, Operand, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// Returns the diagram of nodes or primitives.
pub(super) fn of(
    graph: &Graph,
    lowered: &Lowered,
    items: &[GraphItem],
    totals: GraphTotals,
    is_folded: bool,
) -> GraphDiagram {
    let mut drawing = Drawing::of(graph, lowered, items);
    let sections = sections(graph, lowered);
    let mut shown = Vec::new();
    for section in &sections {
        match (is_folded, section.same_as) {
            (true, Some(same)) => shown.push(drawing.put_reference(section, &sections[same])),
            (true, None) => shown.push(drawing.put_blocks(section)),
            (false, _) => shown.extend(singles(section).iter().map(|section| drawing.put_blocks(section))),
        }
    }
    GraphDiagram { family: graph.family.clone(), nodes: drawing.nodes, sections: shown, totals }
}

/// One section for each block.
fn singles(section: &Section) -> Vec<Section> {
    let single = |(index, part): (usize, &Range<usize>)| Section {
        parts: vec![part.clone()],
        blocks: section.blocks.get(index).cloned().into_iter().collect(),
        same_as: None,
    };
    section.parts.iter().enumerate().map(single).collect()
}

/// The nodes that are drawn so far.
struct Drawing<'a> {
    graph: &'a Graph,
    lowered: &'a Lowered,
    items: &'a [GraphItem<'a>],
    /// The items of each node of the graph.
    ranges: Vec<Range<usize>>,
    roles: Vec<Role>,
    nodes: Vec<DiagramNode>,
    /// The drawn node that shows each value.
    shown: HashMap<ValueId, usize>,
}

impl<'a> Drawing<'a> {
    /// Draws the inputs.
    fn of(graph: &'a Graph, lowered: &'a Lowered, items: &'a [GraphItem<'a>]) -> Self {
        let mut ranges = vec![0..0; graph.nodes.len()];
        for (index, item) in items.iter().enumerate() {
            let range = &mut ranges[item.of_node];
            let start = if range.start == range.end { index } else { range.start };
            *range = start..index + 1;
        }
        let roles = roles(graph).into_iter().map(|known| known.role).collect();
        let mut found = Self { graph, lowered, items, ranges, roles, nodes: Vec::new(), shown: HashMap::new() };
        for input in &graph.inputs {
            found.shown.insert(input.value, found.nodes.len());
            let name = graph.values[input.value.0].clone();
            found.nodes.push(plain(name, "input".into(), input.shape.clone()));
        }
        found
    }

    fn items_of(&self, part: &Range<usize>) -> Range<usize> {
        match (self.ranges.get(part.start), part.end.checked_sub(1).and_then(|last| self.ranges.get(last))) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }

    /// Draws the first of equal blocks.
    fn put_blocks(&mut self, section: &Section) -> DiagramSection {
        let first_node = self.nodes.len();
        let first = self.items_of(&section.parts[0]);
        for index in first.clone() {
            let node = self.node(&self.items[index], section.blocks.first().map_or("", String::as_str));
            for value in self.items[index].outputs {
                self.shown.insert(*value, self.nodes.len());
            }
            self.nodes.push(node);
        }
        // Values of the other blocks are shown by the nodes of the first one.
        for part in &section.parts[1..] {
            for (place, index) in self.items_of(part).enumerate() {
                for value in self.items[index].outputs {
                    self.shown.insert(*value, first_node + place);
                }
            }
        }
        self.section(section, first_node)
    }

    /// Draws blocks that equal earlier ones as one node.
    fn put_reference(&mut self, section: &Section, same: &Section) -> DiagramSection {
        let first_node = self.nodes.len();
        let last = section.parts.last().map_or(0..0, |part| self.items_of(part));
        let output = self.items[last.clone()].last().and_then(|item| item.outputs.first());
        let shape = output.map_or(Vec::new(), |value| self.lowered.shapes[value.0].clone());
        let equal = same.blocks.first().map_or("", String::as_str);
        let mut node = plain(names_of(&section.blocks), format!("equal to {equal}"), shape);
        let inner: Vec<usize> = section.parts.iter().flat_map(|part| self.items_of(part)).collect();
        let used = inner.iter().flat_map(|&index| self.items[index].inputs);
        node.inputs = self.sources(used);
        for index in inner {
            let item = &self.items[index];
            node.bytes = node.bytes.saturating_add(item.bytes);
            node.multiply_adds = node.multiply_adds.saturating_add(item.multiply_adds);
            for value in item.outputs {
                self.shown.insert(*value, first_node);
            }
        }
        self.nodes.push(node);
        DiagramSection { blocks: String::new(), n_blocks: 1, ..self.section(section, first_node) }
    }

    fn section(&self, section: &Section, first_node: usize) -> DiagramSection {
        let items = || section.parts.iter().flat_map(|part| &self.items[self.items_of(part)]);
        DiagramSection {
            blocks: names_of(&section.blocks),
            n_blocks: section.parts.len(),
            first_node,
            n_nodes: self.nodes.len() - first_node,
            bytes: items().fold(0, |n: u64, item| n.saturating_add(item.bytes)),
            multiply_adds: items().fold(0, |n: u64, item| n.saturating_add(item.multiply_adds)),
        }
    }

    /// The drawn nodes that show the values among these operands, each once.
    fn sources<'o>(&self, operands: impl Iterator<Item = &'o Operand>) -> Vec<usize> {
        let mut found = Vec::new();
        for operand in operands {
            if let Operand::Value(value) = operand
                && let Some(&source) = self.shown.get(value)
                && !found.contains(&source)
            {
                found.push(source);
            }
        }
        found
    }

    fn node(&self, item: &GraphItem, block: &str) -> DiagramNode {
        let weights = || {
            item.inputs.iter().filter_map(|operand| match operand {
                Operand::Weight(weight) => Some(weight.0),
                Operand::Value(_) => None,
            })
        };
        let largest = weights().max_by_key(|&weight| (self.graph.weights[weight].n_bytes(), std::cmp::Reverse(weight)));
        let shown = |weight: usize| {
            let weight = &self.graph.weights[weight];
            let name = within(&weight.name, item.name).or_else(|| within(&weight.name, block)).unwrap_or(&weight.name);
            DiagramWeight { name: name.to_string(), shape: weight.shape.0.clone() }
        };
        DiagramNode {
            name: within(item.name, block).unwrap_or(item.name).to_string(),
            operation: item.operation.clone(),
            role: largest.map(|weight| self.roles[weight]),
            weights: weights().map(shown).collect(),
            bytes: item.bytes,
            multiply_adds: item.multiply_adds,
            output: item.outputs.first().map_or(Vec::new(), |value| self.lowered.shapes[value.0].clone()),
            inputs: self.sources(item.inputs.iter()),
        }
    }
}

/// A node without weights.
fn plain(name: String, operation: String, output: Vec<usize>) -> DiagramNode {
    DiagramNode {
        name,
        operation,
        role: None,
        weights: Vec::new(),
        bytes: 0,
        multiply_adds: 0,
        output,
        inputs: Vec::new(),
    }
}

/// The rest of a name after its owner.
fn within<'n>(name: &'n str, owner: &str) -> Option<&'n str> {
    name.strip_prefix(owner)?.strip_prefix('.').filter(|_| !owner.is_empty())
}

/// The names of blocks: `encoder.layer.0 to 5`, or with a star for numbers that are not at the end.
fn names_of(blocks: &[String]) -> String {
    match blocks {
        [] => String::new(),
        [only] => only.clone(),
        [first, .., last] if first == last => format!("{first}, shared weights"),
        [first, .., last] => match (first.rsplit_once('.'), last.rsplit_once('.')) {
            (Some((owner, _)), Some((other, number))) if owner == other => format!("{first} to {number}"),
            _ => label(blocks.iter().map(String::as_str)),
        },
    }
}
