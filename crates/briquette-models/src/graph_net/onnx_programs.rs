//! The programs of an ONNX model, one for each shape of its inputs.

use super::program::GraphProgram;
use briquette_graph::ValueId;
use briquette_graph::onnx::RunnableModel;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The programs of an ONNX model so far.
#[derive(Debug)]
pub(super) struct OnnxPrograms {
    pub(super) model: RunnableModel,
    pub(super) programs: Mutex<BTreeMap<ProgramKey, Arc<OnnxProgram>>>,
}

/// The shapes of all inputs, and the wanted values.
type ProgramKey = (Vec<Vec<usize>>, Vec<ValueId>);

/// The program of one shape of the inputs.
#[derive(Debug)]
pub(super) struct OnnxProgram {
    pub(super) program: GraphProgram,
    /// The ids of the inputs in the graph of this shape.
    pub(super) inputs: Vec<ValueId>,
}
