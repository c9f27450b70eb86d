//! Fuses the operations after convolutions that are still steps of their own.
//!
//! It comes after the fusion with grids, which needs convolutions without sums.

use super::fusing::{Fused, Fusing, fused_step, value_of};
use crate::graph_net::steps::{ConvThenCall, GraphCall, GraphStep, StepInput};
use briquette_cpu::OutputBounds;
use briquette_graph::ValueId;
use briquette_graph::op::ElementFunction;
use std::collections::{BTreeMap, BTreeSet};

/// Fuses biases, sums and bounds with the convolutions before them, and notes which outputs only convolutions read.
pub(super) fn with_epilogues(steps: Vec<GraphStep>, wanted: &[ValueId]) -> Vec<GraphStep> {
    let mut fusing = Fusing::new(steps, wanted);
    for last in 0..fusing.steps.len() {
        let Some(step) = fusing.steps[last].clone() else { continue };
        let found = match &step.call {
            GraphCall::Function(ElementFunction::Add) => fusing.sum(&step),
            GraphCall::Function(ElementFunction::Relu) => fusing.bounded(&step, OutputBounds::Relu),
            GraphCall::Function(ElementFunction::Relu6) => fusing.bounded(&step, OutputBounds::Relu6),
            _ => None,
        };
        if let Some((fused, replaced)) = found {
            replaced.into_iter().for_each(|index| fusing.steps[index] = None);
            fusing.steps[last] = Some(fused);
        }
    }
    let mut steps: Vec<GraphStep> = fusing.steps.into_iter().flatten().collect();
    note_readers(&mut steps, wanted);
    steps
}

impl Fusing {
    /// Returns a step as a convolution that more operations may follow, with its inputs.
    fn open_conv(&self, source: &StepInput) -> Option<(usize, ConvThenCall, Vec<StepInput>)> {
        let (index, step) = self.sole(source)?;
        let call = match &step.call {
            GraphCall::Conv(layer) => ConvThenCall::new(*layer, None),
            GraphCall::ConvThen(call) if call.is_open() => call.clone(),
            _ => return None,
        };
        Some((index, call, step.inputs.clone()))
    }

    /// Fuses a bias or a shortcut.
    fn sum(&self, sum: &GraphStep) -> Fused {
        let &[left, right] = sum.inputs.as_slice() else { return None };
        if let StepInput::Constant(_) = right {
            let (index, call, inputs) = self.open_conv(&left)?;
            let call = ConvThenCall { has_bias: true, ..call };
            let is_first = call.norm.is_none() && inputs.len() == 1;
            let inputs = [inputs[0], right].to_vec();
            return is_first.then(|| (fused_step(GraphCall::ConvThen(call), inputs, sum), vec![index]));
        }
        let either = [(left, right), (right, left)].into_iter().filter(|(_, shortcut)| value_of(shortcut).is_some());
        let (found, shortcut) =
            either.filter_map(|(conv, shortcut)| Some((self.open_conv(&conv)?, shortcut))).next_back()?;
        let (index, call, mut inputs) = found;
        inputs.push(shortcut);
        let call = ConvThenCall { has_shortcut: true, ..call };
        Some((fused_step(GraphCall::ConvThen(call), inputs, sum), vec![index]))
    }

    /// Fuses a function that bounds the outputs.
    fn bounded(&self, function: &GraphStep, bounds: OutputBounds) -> Fused {
        let (index, step) = self.sole(function.inputs.first()?)?;
        let call = match &step.call {
            GraphCall::Conv(layer) => ConvThenCall::new(*layer, None),
            GraphCall::ConvThen(call) if call.bounds == OutputBounds::None => call.clone(),
            _ => return None,
        };
        let call = GraphCall::ConvThen(ConvThenCall { bounds, ..call });
        Some((fused_step(call, step.inputs.clone(), function), vec![index]))
    }
}

/// Notes the convolutions that read the output of each fused convolution, unless something else reads it too.
fn note_readers(steps: &mut [GraphStep], wanted: &[ValueId]) {
    let mut others: BTreeSet<ValueId> = wanted.iter().copied().collect();
    let mut readers: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
    for step in &*steps {
        let values = step.inputs.iter().filter_map(value_of);
        match &step.call {
            GraphCall::ConvThen(ConvThenCall { conv, .. }) | GraphCall::Conv(conv) => {
                values.for_each(|value| readers.entry(value).or_default().push(*conv));
            }
            _ => others.extend(values),
        }
    }
    for step in steps {
        let call = match &step.call {
            GraphCall::Conv(layer) => ConvThenCall::new(*layer, None),
            GraphCall::ConvThen(call) => call.clone(),
            _ => continue,
        };
        let output = step.outputs[0];
        if let Some(readers) = readers.remove(&output).filter(|_| !others.contains(&output)) {
            step.call = GraphCall::ConvThen(ConvThenCall { readers, ..call });
        }
    }
}
