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
    /// A number that has to be computed first, because the graph depends on it. The graph then computes nothing else, and is built
    /// again with the answer.
    pub question: Option<ValueId>,
}
