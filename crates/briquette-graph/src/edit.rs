//! Graphs with fewer blocks than another.

use crate::blocks::{BlockBorder, border};
use crate::graph::{Block, Graph, Node, Operand, ValueId, WeightId};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

impl Graph {
    /// Returns the number of blocks that [`with_blocks`](Self::with_blocks) can choose from.
    ///
    /// None if blocks do not follow each other with hidden states of one shape between them, as in a convolutional
    /// network, or if a block is named after weights that run outside of it, as in T5.
    pub fn n_choosable_blocks(&self) -> Option<usize> {
        if self.has_weights_of_blocks_outside() {
            return None;
        }
        let (ends, shapes) = (self.ends_of_blocks().ok()?, self.lower().ok()?.shapes);
        let first = &shapes[ends.first()?[0].0];
        let is_uniform = ends.iter().flatten().all(|value| &shapes[value.0] == first);
        is_uniform.then_some(self.blocks.len())
    }

    /// Returns whether a node outside of all blocks has a weight whose name begins with that of a block.
    ///
    /// The first block of T5 has the table of relative positions, which runs before all blocks.
    fn has_weights_of_blocks_outside(&self) -> bool {
        let is_of_block = |name: &str| {
            let rest = |block: &Block| name.strip_prefix(&block.name).is_some_and(|rest| rest.starts_with('.'));
            self.blocks.iter().any(rest)
        };
        let is_outside = |place: usize| !self.blocks.iter().any(|block| block.nodes.contains(&place));
        let outside = self.nodes.iter().enumerate().filter(|(place, _)| is_outside(*place));
        outside.flat_map(|(_, node)| node.weights()).any(|(_, weight)| is_of_block(&self.weights[weight.0].name))
    }

    /// Returns the same network with only these blocks, in this order, renamed to the first blocks.
    ///
    /// A block may occur several times; each occurrence has weights of its own.
    ///
    /// # Errors
    /// - Config: there is no such block, or none is chosen.
    /// - Config: another value than the output of the block before crosses the border of a block.
    pub fn with_blocks(&self, chosen: &[usize]) -> Result<Self> {
        let ends = self.ends_of_blocks()?;
        if chosen.is_empty() || chosen.len() > self.blocks.len() {
            let message = format!("found {} blocks, expected 1 to {}", chosen.len(), self.blocks.len());
            return Err(Error::config(message));
        }
        if let Some(block) = chosen.iter().find(|block| **block >= self.blocks.len()) {
            return Err(Error::config(format!("found block {block}, expected 0 to {}", self.blocks.len() - 1)));
        }
        let (first, last) = (self.blocks[0].nodes.start, self.blocks[self.blocks.len() - 1].nodes.end);
        let mut to = Edit { from: self, graph: Self { nodes: Vec::new(), blocks: Vec::new(), ..self.clone() } };
        to.graph.nodes.extend_from_slice(&self.nodes[..first]);
        let mut state = ends[0][0];
        for (place, &block) in chosen.iter().enumerate() {
            state = to.add_block(place, block, ends[block], state);
        }
        let ends_with = BTreeMap::from([(ends[ends.len() - 1][1], state)]);
        let after = self.nodes[last..].iter().map(|node| with_values(node, &ends_with));
        to.graph.nodes.extend(after);
        to.graph.outputs = to.graph.outputs.iter().map(|value| *ends_with.get(value).unwrap_or(value)).collect();
        Ok(to.graph.without_unused_weights())
    }

    /// Returns the value before and after each block, besides values that every block reads.
    fn ends_of_blocks(&self) -> Result<Vec<[ValueId; 2]>> {
        let borders: Vec<BlockBorder> = self.blocks.iter().map(|block| border(self, block)).collect();
        // MPNet computes relative positions before its blocks.
        let is_read_by_all = |value: &ValueId| borders.iter().all(|border| border.inputs.contains(value));
        let mut ends: Vec<[ValueId; 2]> = Vec::new();
        for (block, border) in self.blocks.iter().zip(&borders) {
            let own = border.inputs.iter().filter(|value| borders.len() == 1 || !is_read_by_all(value));
            let (inputs, outputs) =
                (own.copied().collect::<Vec<_>>(), border.outputs.iter().copied().collect::<Vec<_>>());
            match (inputs.as_slice(), outputs.as_slice()) {
                (&[before], &[after]) if ends.last().is_none_or(|end| end[1] == before) => ends.push([before, after]),
                _ => {
                    let message = format!("found {} inputs and {} outputs, expected one", inputs.len(), outputs.len());
                    return Err(Error::config(message).at(format_args!("block {:?}", block.name)));
                }
            }
        }
        if ends.is_empty() {
            return Err(Error::config("the network has no blocks"));
        }
        Ok(ends)
    }

    /// Drops weights that no node uses, and renumbers the rest.
    fn without_unused_weights(mut self) -> Self {
        let mut places = BTreeMap::new();
        let mut weights = Vec::new();
        for node in &mut self.nodes {
            for operand in &mut node.inputs {
                if let Operand::Weight(weight) = operand {
                    let place = *places.entry(*weight).or_insert_with(|| {
                        weights.push(self.weights[weight.0].clone());
                        WeightId(weights.len() - 1)
                    });
                    *weight = place;
                }
            }
        }
        self.weights = weights;
        self
    }
}

/// A graph that grows by blocks of another.
struct Edit<'a> {
    from: &'a Graph,
    graph: Graph,
}

impl Edit<'_> {
    /// Adds a block with new values and weights, and returns its output.
    fn add_block(&mut self, place: usize, block: usize, [before, after]: [ValueId; 2], state: ValueId) -> ValueId {
        let (old, new) = (&self.from.blocks[block], self.from.blocks[place].name.clone());
        let renamed = |name: &str| match name.strip_prefix(&old.name) {
            Some(rest) => format!("{new}{rest}"),
            None => name.to_string(),
        };
        let (mut values, mut weights) = (BTreeMap::from([(before, state)]), BTreeMap::new());
        let start = self.graph.nodes.len();
        for node in &self.from.nodes[old.nodes.clone()] {
            for output in &node.outputs {
                self.graph.values.push(renamed(&self.from.values[output.0]));
                values.insert(*output, ValueId(self.graph.values.len() - 1));
            }
            let mut node = with_values(node, &values);
            node.name = renamed(&node.name);
            for operand in &mut node.inputs {
                if let Operand::Weight(weight) = operand {
                    *weight = *weights.entry(*weight).or_insert_with(|| self.weight(*weight, &renamed));
                }
            }
            self.graph.nodes.push(node);
        }
        self.graph.blocks.push(Block { name: new, nodes: start..self.graph.nodes.len() });
        values[&after]
    }

    /// Copies a weight of the block; a weight that other blocks share stays shared.
    fn weight(&mut self, weight: WeightId, renamed: &dyn Fn(&str) -> String) -> WeightId {
        let old = &self.from.weights[weight.0];
        let name = renamed(&old.name);
        if name == old.name && self.graph.weights.get(weight.0) == Some(old) {
            return weight;
        }
        let aliases = old.aliases.iter().map(|alias| renamed(alias)).collect();
        self.graph.weights.push(crate::graph::Weight { name, aliases, ..old.clone() });
        WeightId(self.graph.weights.len() - 1)
    }
}

/// Returns a node with other values, where the map has them.
fn with_values(node: &Node, values: &BTreeMap<ValueId, ValueId>) -> Node {
    let mut node = node.clone();
    for operand in &mut node.inputs {
        if let Operand::Value(value) = operand {
            *value = *values.get(value).unwrap_or(value);
        }
    }
    for output in &mut node.outputs {
        *output = *values.get(output).unwrap_or(output);
    }
    node
}
