//! The graph of an ONNX file with the names of its values.

use crate::graph::{Graph, ValueId};
use std::collections::BTreeMap;

/// A graph, and the values that have a name in its file. Several names may have one value.
#[derive(Debug, Clone)]
pub struct ImportedGraph {
    /// The graph.
    pub graph: Graph,
    /// The values that the graph computes, by their names in the file.
    pub names: BTreeMap<String, ValueId>,
}
