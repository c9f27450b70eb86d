//! The figures of a network's graph: as a diagram with equal blocks once, and in full.

use briquette_core::{DType, OutputAxis, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network as a diagram: equal blocks that follow each other appear once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphDiagram {
    /// The family of the network.
    pub family: String,
    /// The nodes that are shown: inputs first, then operations in their order.
    pub nodes: Vec<DiagramNode>,
    /// The parts of the network after its inputs, in order.
    pub sections: Vec<DiagramSection>,
    /// Totals of the whole network.
    pub totals: GraphTotals,
}

/// A node of a diagram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagramNode {
    /// The name; within a block, without the name of the block.
    pub name: String,
    /// The operation in words.
    pub operation: String,
    /// The role of its largest weight, if it has weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The weights, with names relative to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<DiagramWeight>,
    /// Bytes of the dense weights that no earlier node uses.
    pub bytes: u64,
    /// The multiply-adds.
    pub multiply_adds: u64,
    /// The shape of the first output.
    pub output: Vec<usize>,
    /// The nodes whose outputs it uses, by index.
    pub inputs: Vec<usize>,
}

/// A weight of a node of a diagram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiagramWeight {
    /// The name, relative to the node if possible.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
}

/// A part of a diagram: nodes outside of blocks, or equal blocks that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiagramSection {
    /// The names of the blocks, such as `encoder.layer.0 to 5`; empty outside of blocks.
    pub blocks: String,
    /// Number of equal blocks; the nodes of one of them are shown.
    pub n_blocks: usize,
    /// The index of its first node.
    pub first_node: usize,
    /// Number of its nodes.
    pub n_nodes: usize,
    /// Bytes of the dense weights of all its blocks.
    pub bytes: u64,
    /// The multiply-adds of all its blocks.
    pub multiply_adds: u64,
}

impl DiagramSection {
    /// Returns whether the section consists of blocks.
    pub fn is_of_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }
}

/// Totals of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphTotals {
    /// Number of nodes.
    pub n_nodes: usize,
    /// Number of elements of all parameters, without buffers.
    pub n_parameters: u64,
    /// Bytes of all weights as dense tensors.
    pub weight_bytes: u64,
    /// The multiply-adds of one run.
    pub multiply_adds: u64,
}

/// A network's graph: the document of `briquette graph --json`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GraphReport {
    /// The kind of the document.
    pub format: String,
    /// Version of this structure.
    pub version: u32,
    /// The program that wrote the document.
    pub producer: String,
    /// The path of the model.
    pub model: String,
    /// The family of the network.
    pub family: String,
    /// Totals of the whole network.
    pub totals: GraphTotals,
    /// The inputs, as indices of `values`.
    pub inputs: Vec<usize>,
    /// The outputs, as indices of `values`.
    pub outputs: Vec<usize>,
    /// The activations. With `primitives`, activations within composite operations follow, without names.
    pub values: Vec<GraphValue>,
    /// The weights that nodes use.
    pub weights: Vec<GraphWeight>,
    /// The operations, each after the operations that it depends on.
    pub nodes: Vec<GraphNode>,
    /// Ranges of nodes that repeat.
    pub blocks: Vec<GraphBlock>,
    /// Weights of linear layers with the same input, as indices of `weights`.
    pub siblings: Vec<Vec<usize>>,
    /// Tensors of the file that no node uses.
    pub unused: Vec<String>,
    /// The primitive operations, with `--lowered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primitives: Option<Vec<GraphPrimitive>>,
    /// The coupling groups, with `--groups`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coupling: Option<CouplingReport>,
    /// The network for pages and tables.
    #[serde(skip)]
    #[schemars(skip)]
    pub diagram: GraphDiagram,
}

impl GraphReport {
    /// The kind of the document.
    pub const FORMAT: &'static str = "briquette-graph";
    /// The version of the document.
    pub const VERSION: u32 = 1;
}

/// An activation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphValue {
    /// The name; empty within composite operations.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
}

/// A weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphWeight {
    /// The tensor's name in the file.
    pub name: String,
    /// Other names of the same weight.
    pub aliases: Vec<String>,
    /// The type.
    #[schemars(with = "String")]
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
    /// Bytes of the dense weight.
    pub bytes: u64,
    /// The role.
    pub role: Role,
    /// The axis that counts outputs.
    #[schemars(with = "String")]
    pub output_axis: OutputAxis,
    /// Whether it is a buffer, such as running statistics, and no parameter.
    pub is_buffer: bool,
}

/// An activation or a weight that a node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GraphOperand {
    /// An index of `values`.
    Value(usize),
    /// An index of `weights`.
    Weight(usize),
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GraphNode {
    /// The name; for a layer, its path in the file.
    pub name: String,
    /// The operation in words.
    pub operation: String,
    /// The operation with its settings.
    pub op: serde_json::Value,
    /// Activations and weights, in the order of the operation.
    pub inputs: Vec<GraphOperand>,
    /// The activations that it computes, as indices of `values`.
    pub outputs: Vec<usize>,
    /// Bytes of the dense weights that no earlier node uses.
    pub bytes: u64,
    /// The multiply-adds.
    pub multiply_adds: u64,
}

/// A primitive operation, and the node that expands to it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GraphPrimitive {
    /// The index of the node in `nodes`.
    pub of_node: usize,
    /// The operation.
    #[serde(flatten)]
    pub node: GraphNode,
}

/// A range of nodes that repeats, such as a transformer layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphBlock {
    /// The path of its tensors in the file.
    pub name: String,
    /// The index of its first node.
    pub first_node: usize,
    /// Number of its nodes.
    pub n_nodes: usize,
}

/// The coupling groups of a network: channels, heads and experts that can only be removed together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CouplingReport {
    /// Number of elements of all parameters, without buffers.
    pub n_parameters: u64,
    /// Parameters that stay after removing half of the units of every group.
    pub n_left_at_half: u64,
    /// The groups, in the order of weights.
    pub groups: Vec<GroupFigures>,
}

/// Units of which each must be removed from all places at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GroupFigures {
    /// Number of units, such as channels or heads.
    pub n_units: usize,
    /// The axes of weights that are cut.
    pub places: Vec<GroupPlace>,
    /// Parameters that stay in the network after removing half of the units of this group alone.
    pub n_left_at_half: u64,
}

/// An axis of a weight that a group cuts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GroupPlace {
    /// The weight, as an index of `weights`.
    pub weight: usize,
    /// The tensor's name in the file.
    pub name: String,
    /// The axis.
    pub axis: usize,
    /// Elements of the axis that belong to each unit.
    pub width: usize,
}
