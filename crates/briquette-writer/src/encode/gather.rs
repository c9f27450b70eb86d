//! Combines the results of tasks into the outcome of each tensor.

use super::{Outcome, OutputError, TaskOutcome};
use crate::narrow::Narrowness;
use crate::plan::{Plan, TensorPlan};
use briquette_core::{ErrorStats, TensorHasher};

/// Returns the outcome of each tensor.
///
/// Both lists have tasks with the index of their tensor, in its order. The second list has the lengths of
/// weight norms. A tied tensor has the outcome of its main tensor.
pub(super) fn gather(
    plan: &Plan,
    tasks: impl Iterator<Item = (usize, TaskOutcome)>,
    lengths: impl Iterator<Item = (usize, TaskOutcome)>,
) -> Vec<Outcome> {
    let (mut tasks, mut lengths) = (tasks.peekable(), lengths.peekable());
    let mut outcomes = Vec::with_capacity(plan.tensors.len());
    for (index, tensor) in plan.tensors.iter().enumerate() {
        let is_own = |(of, _): &(usize, TaskOutcome)| *of == index;
        let own = std::iter::from_fn(|| tasks.next_if(is_own).or_else(|| lengths.next_if(is_own)));
        outcomes.push(outcome_of(plan, tensor, own.map(|(_, found)| found)));
    }
    for (index, tensor) in plan.tensors.iter().enumerate() {
        if let Some(main) = tensor.tied_to() {
            outcomes[index] = outcomes[main].clone();
        }
    }
    outcomes
}

fn outcome_of(plan: &Plan, tensor: &TensorPlan, tasks: impl Iterator<Item = TaskOutcome>) -> Outcome {
    let (mut hasher, mut stats, mut outputs) = (TensorHasher::default(), ErrorStats::default(), OutputError::default());
    let (mut narrowness, mut ends) = (Narrowness::default(), Vec::new());
    for found in tasks {
        found.digests.into_iter().for_each(|digest| hasher.push(digest));
        found.block_bytes.into_iter().for_each(|n_bytes| ends.push(ends.last().unwrap_or(&0) + n_bytes));
        stats.merge(&found.stats);
        narrowness.merge(&found.narrowness);
        outputs.merge(found.outputs);
    }
    narrowness.is_all_lost = stats.is_all_lost();
    let outputs = plan.inputs.contains_key(&tensor.index()).then_some(outputs);
    Outcome { hash: hasher.finish(), stats, outputs, narrowness, block_ends: ends.into_boxed_slice() }
}
