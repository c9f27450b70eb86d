//! Divides the work of encoding into tasks.

use crate::layout::PlacedTensors;
use crate::plan::Plan;
use crate::survey::Survey;
use briquette_core::block::RowEncoder;
use std::ops::Range;

/// The tensor and the pieces of a task, in a few bytes, as there may be millions of tasks.
pub(super) struct TaskPieces {
    pub(super) tensor: u32,
    pub(super) pieces: Range<u32>,
}

/// The tasks of all tensors that are not tied to another, in the order of the tensors.
pub(super) struct TaskLists {
    /// All tasks except the lengths of weight norms.
    pub(super) first: Vec<TaskPieces>,
    /// The lengths of weight norms, which depend on the stored directions.
    pub(super) lengths: Vec<TaskPieces>,
}

impl TaskLists {
    /// Returns the tasks for the pieces that a survey found.
    pub(super) fn of(plan: &Plan, surveys: &[Survey], placed: &PlacedTensors) -> Self {
        let mut lists = Self { first: Vec::with_capacity(plan.tensors.len()), lengths: Vec::new() };
        for (index, _) in plan.tensors.iter().enumerate().filter(|(_, tensor)| tensor.tied_to().is_none()) {
            let n = surveys[index].n_pieces() as u32;
            let per_task = if RowEncoder::is_one_stream(placed.of(index).coding) { n.max(1) } else { 1 };
            let starts = (0..n).step_by(per_task as usize);
            let pieces = starts.map(|start| start..(start + per_task).min(n));
            let list = if plan.is_rescaled(index) { &mut lists.lengths } else { &mut lists.first };
            list.extend(pieces.map(|pieces| TaskPieces { tensor: index as u32, pieces }));
        }
        lists
    }
}
