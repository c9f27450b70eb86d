//! Combines the results of tasks into the outcome of each tensor.

use super::outcomes::{Outcomes, TaskOutcome};
use super::output_error::OutputError;
use super::turned::PieceDigests;
use crate::narrow::Narrowness;
use crate::plan::Plan;
use crate::weight_norm::NormSums;
use briquette_core::{ErrorStats, Hash128, TensorHasher};
use std::collections::BTreeMap;

/// The results of the tasks that ran.
pub(super) struct GatheredOutcomes<'a> {
    plan: &'a Plan<'a>,
    outcomes: Outcomes,
    /// Results of tensors with several tasks, in the order of tensors and tasks.
    parts: BTreeMap<(usize, usize), TaskOutcome>,
    /// Sums over the directions of weight norms, in the same order.
    norms: BTreeMap<(usize, usize), Box<NormSums>>,
    /// Hashes that do not follow from the digests of tasks, by tensor.
    hashes: BTreeMap<usize, Hash128>,
}

impl<'a> GatheredOutcomes<'a> {
    /// Creates the results before any task ran.
    pub(super) fn new(plan: &'a Plan) -> Self {
        let n = plan.tensors.len();
        let outcomes = Outcomes {
            hashes: vec![TensorHasher::default().finish(); n],
            stats: vec![ErrorStats::default(); n],
            outputs: BTreeMap::new(),
            narrow: BTreeMap::new(),
            block_ends: BTreeMap::new(),
        };
        Self { plan, outcomes, parts: BTreeMap::new(), norms: BTreeMap::new(), hashes: BTreeMap::new() }
    }

    /// Adds the result of a task; `nth` is its number if its tensor has several tasks.
    pub(super) fn put(&mut self, tensor: usize, nth: Option<usize>, mut found: TaskOutcome) {
        if let Some(sums) = found.norm.take() {
            self.norms.insert((tensor, nth.unwrap_or(0)), sums);
        }
        match nth {
            Some(nth) => drop(self.parts.insert((tensor, nth), found)),
            None => self.finish_tensor(tensor, std::iter::once(found)),
        }
    }

    /// Takes the sums over directions out, each with the index of its tensor.
    pub(super) fn take_norms(&mut self) -> Vec<(usize, NormSums)> {
        std::mem::take(&mut self.norms).into_iter().map(|((tensor, _), sums)| (tensor, *sums)).collect()
    }

    /// Takes the digests of the tasks of some tensors with several tasks out, by tensor and task.
    pub(super) fn take_digests(&mut self, is_taken: impl Fn(usize) -> bool) -> BTreeMap<usize, PieceDigests> {
        let mut taken = BTreeMap::<usize, PieceDigests>::new();
        for ((tensor, _), found) in self.parts.iter_mut().filter(|((tensor, _), _)| is_taken(*tensor)) {
            taken.entry(*tensor).or_default().push(std::mem::take(&mut found.digests));
        }
        taken
    }

    /// Sets the hashes of tensors whose digests were taken out.
    pub(super) fn put_hashes(&mut self, hashes: BTreeMap<usize, Hash128>) {
        self.hashes = hashes;
    }

    /// Returns the outcomes of all tensors.
    pub(super) fn finish(mut self) -> Outcomes {
        let mut parts = std::mem::take(&mut self.parts).into_iter().peekable();
        while let Some(((tensor, _), first)) = parts.next() {
            let rest = std::iter::from_fn(|| parts.next_if(|((of, _), _)| *of == tensor).map(|(_, found)| found));
            self.finish_tensor(tensor, std::iter::once(first).chain(rest));
        }
        let Self { plan, mut outcomes, .. } = self;
        for index in plan.inputs.keys().filter(|index| plan.tensors[**index].tied_to().is_none()) {
            outcomes.outputs.entry(*index).or_default();
        }
        for (index, tensor) in plan.tensors.iter().enumerate() {
            if let Some(main) = tensor.tied_to() {
                outcomes.copy(main, index);
            }
        }
        outcomes
    }

    /// Sets the outcome of a tensor from all of its tasks.
    fn finish_tensor(&mut self, tensor: usize, tasks: impl Iterator<Item = TaskOutcome>) {
        let (mut hasher, mut stats) = (TensorHasher::default(), ErrorStats::default());
        let (mut outputs, mut narrowness, mut ends) = (OutputError::default(), Narrowness::default(), Vec::new());
        for found in tasks {
            found.digests.into_iter().for_each(|digest| hasher.push(digest));
            found.block_bytes.into_iter().for_each(|n_bytes| ends.push(ends.last().unwrap_or(&0) + n_bytes));
            stats.merge(&found.stats);
            narrowness.merge(&found.narrowness);
            outputs.merge(found.outputs);
        }
        narrowness.is_all_lost = stats.is_all_lost();
        let outcomes = &mut self.outcomes;
        let hash = self.hashes.remove(&tensor).unwrap_or_else(|| hasher.finish());
        (outcomes.hashes[tensor], outcomes.stats[tensor]) = (hash, stats);
        if narrowness != Narrowness::default() {
            outcomes.narrow.insert(tensor, narrowness);
        }
        if self.plan.inputs.contains_key(&tensor) {
            outcomes.outputs.insert(tensor, outputs);
        }
        if !ends.is_empty() {
            outcomes.block_ends.insert(tensor, ends.into_boxed_slice());
        }
    }
}

impl Outcomes {
    /// Copies the outcome of a main tensor to a tensor that is tied to it.
    fn copy(&mut self, main: usize, tied: usize) {
        (self.hashes[tied], self.stats[tied]) = (self.hashes[main], self.stats[main]);
        copy(&mut self.outputs, main, tied);
        copy(&mut self.narrow, main, tied);
        copy(&mut self.block_ends, main, tied);
    }
}

fn copy<T: Clone>(found: &mut BTreeMap<usize, T>, main: usize, tied: usize) {
    if let Some(found_of) = found.get(&main).cloned() {
        found.insert(tied, found_of);
    }
}
