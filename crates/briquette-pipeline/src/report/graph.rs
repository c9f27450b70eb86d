//! The graph of a model's network as figures.

mod diagram;
mod items;

use crate::report::figures::{
    CouplingReport, GraphBlock, GraphDiagram, GraphNode, GraphOperand, GraphPrimitive, GraphReport, GraphTotals,
    GraphValue, GraphWeight, GroupFigures, GroupPlace,
};
use briquette_core::{Error, Result, shown_path};
use briquette_graph::coupling::{CouplingGroup, coupling_groups, parameters_left};
use briquette_graph::roles::roles;
use briquette_graph::siblings::siblings;
use briquette_graph::{Graph, Lowered, Operand};
use items::GraphItem;
use serde::Serialize;
use std::path::Path;

/// The contents of a document about a graph.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphDetail {
    /// Shows the primitive operations instead of nodes.
    pub is_lowered: bool,
    /// Finds the coupling groups.
    pub with_groups: bool,
    /// Shows every block of the network in pages and tables.
    pub is_unfolded: bool,
}

/// Returns the figures of a graph.
///
/// # Errors
/// Input: a weight does not fit its node, or the network is too large; see [`Graph::lower`].
pub fn report(graph: &Graph, model: &Path, detail: GraphDetail) -> Result<GraphReport> {
    let lowered = graph.lower()?;
    let nodes = items::of_nodes(graph, &lowered);
    let primitives = detail.is_lowered.then(|| items::of_primitives(graph, &lowered));
    let coupling = detail.with_groups.then(|| coupling(graph, &lowered)).transpose()?;
    let shown = primitives.as_ref().unwrap_or(&nodes);
    let n_values = if detail.is_lowered { lowered.shapes.len() } else { graph.values.len() };
    Ok(GraphReport {
        format: GraphReport::FORMAT.into(),
        version: GraphReport::VERSION,
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")).into(),
        model: shown_path(model),
        family: graph.family.clone(),
        totals: totals(graph, &nodes),
        inputs: graph.inputs.iter().map(|input| input.value.0).collect(),
        outputs: graph.outputs.iter().map(|value| value.0).collect(),
        values: (0..n_values).map(|value| value_of(graph, &lowered, value)).collect(),
        weights: weights(graph),
        nodes: nodes.iter().map(node).collect::<Result<_>>()?,
        blocks: graph.blocks.iter().map(block).collect(),
        siblings: siblings(graph).iter().map(|group| group.iter().map(|weight| weight.0).collect()).collect(),
        unused: graph.unused.clone(),
        primitives: primitives.as_ref().map(|items| items.iter().map(primitive).collect()).transpose()?,
        coupling,
        diagram: diagram::of(graph, &lowered, shown, totals(graph, &nodes), !detail.is_unfolded),
    })
}

/// Returns the diagram of a graph, with equal blocks once.
///
/// # Errors
/// See [`report`].
pub fn diagram(graph: &Graph) -> Result<GraphDiagram> {
    let lowered = graph.lower()?;
    let nodes = items::of_nodes(graph, &lowered);
    Ok(diagram::of(graph, &lowered, &nodes, totals(graph, &nodes), true))
}

/// Returns the JSON Schema of the document of `briquette graph --json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(GraphReport).to_value()
}

fn totals(graph: &Graph, nodes: &[GraphItem]) -> GraphTotals {
    GraphTotals {
        n_nodes: graph.nodes.len(),
        n_parameters: graph.n_parameters() as u64,
        weight_bytes: nodes.iter().fold(0, |n: u64, item| n.saturating_add(item.bytes)),
        multiply_adds: nodes.iter().fold(0, |n: u64, item| n.saturating_add(item.multiply_adds)),
    }
}

fn value_of(graph: &Graph, lowered: &Lowered, value: usize) -> GraphValue {
    let name = graph.values.get(value).cloned().unwrap_or_default();
    GraphValue { name, shape: lowered.shapes[value].clone() }
}

fn weights(graph: &Graph) -> Vec<GraphWeight> {
    let figures = |(weight, known): (&briquette_graph::Weight, briquette_graph::roles::WeightRole)| GraphWeight {
        name: weight.name.clone(),
        aliases: weight.aliases.clone(),
        dtype: weight.dtype,
        shape: weight.shape.0.clone(),
        bytes: weight.n_bytes(),
        role: known.role,
        output_axis: known.axis,
        is_buffer: weight.is_buffer,
    };
    graph.weights.iter().zip(roles(graph)).map(figures).collect()
}

fn block(block: &briquette_graph::Block) -> GraphBlock {
    GraphBlock { name: block.name.clone(), first_node: block.nodes.start, n_nodes: block.nodes.len() }
}

fn node(item: &GraphItem) -> Result<GraphNode> {
    let operand = |operand: &Operand| match operand {
        Operand::Value(value) => GraphOperand::Value(value.0),
        Operand::Weight(weight) => GraphOperand::Weight(weight.0),
    };
    Ok(GraphNode {
        name: item.name.to_string(),
        operation: item.operation.clone(),
        op: json(&item.op)?,
        inputs: item.inputs.iter().map(operand).collect(),
        outputs: item.outputs.iter().map(|value| value.0).collect(),
        bytes: item.bytes,
        multiply_adds: item.multiply_adds,
    })
}

fn json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|error| Error::bug(format!("an operation: {error}")))
}

fn primitive(item: &GraphItem) -> Result<GraphPrimitive> {
    Ok(GraphPrimitive { of_node: item.of_node, node: node(item)? })
}

fn coupling(graph: &Graph, lowered: &Lowered) -> Result<CouplingReport> {
    let groups = coupling_groups(graph, lowered)?;
    let left = |groups: &[CouplingGroup]| parameters_left(graph, groups, 0.5) as u64;
    let figures = |group: &CouplingGroup| GroupFigures {
        n_units: group.units.len(),
        places: group
            .places
            .iter()
            .map(|place| GroupPlace {
                weight: place.weight.0,
                name: graph.weights[place.weight.0].name.clone(),
                axis: place.axis,
                width: place.width,
            })
            .collect(),
        n_left_at_half: left(std::slice::from_ref(group)),
    };
    Ok(CouplingReport {
        n_parameters: graph.n_parameters() as u64,
        n_left_at_half: left(&groups),
        groups: groups.iter().map(figures).collect(),
    })
}
