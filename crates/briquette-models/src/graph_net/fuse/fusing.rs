//! Steps that are being fused.

use crate::graph_net::steps::{GraphCall, GraphStep, StepInput};
use briquette_graph::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// A fused step, and the indices of the steps that it replaces beside the last.
pub(super) type Fused = Option<(GraphStep, Vec<usize>)>;

/// Steps, and what is known of their values.
pub(super) struct Fusing {
    pub(super) steps: Vec<Option<GraphStep>>,
    /// The step that computes each value.
    makers: BTreeMap<ValueId, usize>,
    /// Values that have one use, by a step.
    used_once: BTreeSet<ValueId>,
}

impl Fusing {
    /// The caller reads the values in `wanted`.
    pub(super) fn new(steps: Vec<GraphStep>, wanted: &[ValueId]) -> Self {
        let mut uses: BTreeMap<ValueId, usize> = wanted.iter().map(|value| (*value, 2)).collect();
        for value in steps.iter().flat_map(|step| &step.inputs).filter_map(value_of) {
            *uses.entry(value).or_default() += 1;
        }
        let makers = steps.iter().enumerate().flat_map(|(index, step)| step.outputs.iter().map(move |v| (*v, index)));
        let makers = makers.collect();
        let used_once = uses.into_iter().filter(|(_, n)| *n == 1).map(|(value, _)| value).collect();
        Self { steps: steps.into_iter().map(Some).collect(), makers, used_once }
    }

    /// Returns the step that computes an input which nothing else uses.
    pub(super) fn sole(&self, source: &StepInput) -> Option<(usize, &GraphStep)> {
        let value = value_of(source).filter(|value| self.used_once.contains(value))?;
        let index = *self.makers.get(&value)?;
        Some((index, self.steps[index].as_ref()?))
    }
}

/// Returns the value that an input is.
pub(super) fn value_of(source: &StepInput) -> Option<ValueId> {
    match source {
        StepInput::Value(value) => Some(*value),
        StepInput::Layer(_) | StepInput::Constant(_) => None,
    }
}

/// Returns a step with the outputs of the last step that it replaces.
pub(super) fn fused_step(call: GraphCall, inputs: Vec<StepInput>, last: &GraphStep) -> GraphStep {
    GraphStep { call, inputs, outputs: last.outputs.clone(), drops: false }
}
