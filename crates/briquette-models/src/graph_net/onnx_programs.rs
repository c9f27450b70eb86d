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

/// The inputs and outputs that a program is built for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProgramKey {
    /// The shapes of all inputs.
    pub(super) shapes: Vec<Vec<usize>>,
    /// The values of single integers, with the positions of their inputs.
    pub(super) numbers: Vec<(usize, i64)>,
    /// The bits of the numbers that the model has computed, on which its graph depends.
    pub(super) answers: Vec<u64>,
    pub(super) wanted: Vec<ValueId>,
    /// Whether each wanted value is passed on when it is computed, and kept no longer than others.
    pub(super) is_observed: bool,
}

/// The program of one shape of the inputs.
#[derive(Debug)]
pub(super) struct OnnxProgram {
    pub(super) program: GraphProgram,
    /// The ids of the inputs in the graph of this shape.
    pub(super) inputs: Vec<ValueId>,
    /// The ids of the wanted values in that graph.
    pub(super) wanted: Vec<ValueId>,
    /// Whether the program computes the next answer instead of them.
    pub(super) is_question: bool,
}
