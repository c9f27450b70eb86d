//! Replaces sequences of steps by the fused steps that a kernel computes in one call.
//!
//! | steps | fused step |
//! |---|---|
//! | query, key and value layers of one input, possibly rounding to grids, then bidirectional attention | [`GraphCall::SelfAttention`] |
//! | linear, function, linear | [`GraphCall::FeedForward`] |
//! | other linear layers of one input | [`GraphCall::Linears`] |
//! | sum of two values, layer norm | [`GraphCall::AddNorm`] |
//! | convolution and bias or batch norm, sum, concatenation or pool, then possibly ReLU or ReLU6, then rounding to a grid | [`GraphCall::Fixed`] |
//! | convolution, bias or batch norm, then possibly a sum with a shortcut, then possibly ReLU or ReLU6 | [`GraphCall::ConvThen`] |
//!
//! A value that a later step or the caller uses is never fused away.

mod convs;
mod fusing;

use super::fixed::{ConvZeros, FixedCall, FixedKind, code_grid};
use super::steps::{ConvThenCall, GraphCall, GraphStep, SelfAttentionCall, StepInput};
use briquette_cpu::OutputBounds;
use briquette_graph::ValueId;
use briquette_graph::op::{ElementFunction, FixedGrid, Primitive, Reduction};
use fusing::{Fused, Fusing, fused_step, value_of};
use std::collections::BTreeMap;

/// Fuses steps. The caller reads the values in `wanted`.
pub(super) fn fused(steps: Vec<GraphStep>, wanted: &[ValueId]) -> Vec<GraphStep> {
    let mut fusing = Fusing::new(steps, wanted);
    for last in 0..fusing.steps.len() {
        let Some(step) = fusing.steps[last].clone() else { continue };
        let found = match &step.call {
            GraphCall::Attention(_) => fusing.self_attention(&step),
            GraphCall::Linear(_) => fusing.feed_forward(&step),
            GraphCall::LayerNorm(_) => fusing.add_norm(&step),
            GraphCall::BatchNorm(_) => fusing.conv_norm(&step),
            GraphCall::Function(ElementFunction::Relu) => fusing.conv_relu(&step),
            GraphCall::Primitive(Primitive::FakeQuantize(grid)) => Some(fusing.rounded(&step, *grid)),
            _ => None,
        };
        if let Some((fused, replaced)) = found {
            replaced.into_iter().for_each(|index| fusing.steps[index] = None);
            fusing.steps[last] = Some(fused);
        }
    }
    let steps = with_joined_layers(fusing.steps.into_iter().flatten().collect());
    convs::with_epilogues(steps, wanted)
}

/// Joins linear layers of one input, at the place of the first.
fn with_joined_layers(steps: Vec<GraphStep>) -> Vec<GraphStep> {
    let mut joined: Vec<GraphStep> = Vec::with_capacity(steps.len());
    let mut first_of = BTreeMap::new();
    for step in steps {
        let GraphCall::Linear(layer) = step.call else {
            joined.push(step);
            continue;
        };
        let input = step.inputs.first().and_then(value_of).filter(|_| step.inputs.len() == 1 && !step.drops);
        let first = input.map(|input| *first_of.entry(input).or_insert(joined.len()));
        match first.and_then(|first| joined.get_mut(first)) {
            Some(first) => {
                let mut layers = first.call.layers();
                layers.push(layer);
                first.call = GraphCall::Linears(layers);
                first.outputs.extend(step.outputs);
            }
            None => joined.push(step),
        }
    }
    joined
}

impl Fusing {
    fn self_attention(&self, attention: &GraphStep) -> Fused {
        let GraphCall::Attention(call) = &attention.call else { return None };
        let settings = &call.settings;
        if *settings != (briquette_graph::op::Attention::full(settings.heads)) || attention.inputs.len() != 3 {
            return None;
        }
        let (mut layers, mut replaced, mut inputs, mut grids) = ([0; 3], Vec::new(), Vec::new(), Vec::new());
        for (layer, source) in layers.iter_mut().zip(&attention.inputs) {
            let (mut index, mut step) = self.sole(source)?;
            if let GraphCall::Fixed(FixedCall { kind: FixedKind::Same, function: None, grid }) = step.call {
                grids.push(code_grid(grid)?);
                replaced.push(index);
                (index, step) = self.sole(&step.inputs[0])?;
            }
            let GraphCall::Linear(linear) = step.call else { return None };
            *layer = linear;
            replaced.push(index);
            inputs.push(step.inputs[0]);
        }
        inputs.dedup();
        let grids = if grids.is_empty() { None } else { Some(grids.try_into().ok()?) };
        let call = GraphCall::SelfAttention(SelfAttentionCall { layers, grids, attention: call.clone() });
        (inputs.len() == 1).then(|| (fused_step(call, inputs, attention), replaced))
    }

    fn feed_forward(&self, down: &GraphStep) -> Fused {
        let GraphCall::Linear(down_layer) = down.call else { return None };
        let (at_function, function) = self.sole(&down.inputs[0])?;
        let GraphCall::Function(known) = function.call else { return None };
        if function.inputs.len() != 1 || matches!(known, ElementFunction::Foreign(_)) {
            return None;
        }
        let (at_up, up) = self.sole(function.inputs.first()?)?;
        let GraphCall::Linear(up_layer) = up.call else { return None };
        let call = GraphCall::FeedForward([up_layer, down_layer], known);
        Some((fused_step(call, up.inputs.clone(), down), vec![at_up, at_function]))
    }

    fn add_norm(&self, norm: &GraphStep) -> Fused {
        let GraphCall::LayerNorm(layer) = norm.call else { return None };
        let (at_sum, sum) = self.sole(&norm.inputs[0])?;
        let is_of_two_values = sum.inputs.len() == 2 && sum.inputs.iter().all(|source| value_of(source).is_some());
        let adds = sum.call == GraphCall::Function(ElementFunction::Add) && is_of_two_values;
        adds.then(|| (fused_step(GraphCall::AddNorm(layer), sum.inputs.clone(), norm), vec![at_sum]))
    }

    fn conv_norm(&self, norm: &GraphStep) -> Fused {
        let GraphCall::BatchNorm(layer) = norm.call else { return None };
        let (at_conv, conv) = self.sole(&norm.inputs[0])?;
        let GraphCall::Conv(conv_layer) = conv.call else { return None };
        let call = GraphCall::ConvThen(ConvThenCall::new(conv_layer, Some(layer)));
        Some((fused_step(call, conv.inputs.clone(), norm), vec![at_conv]))
    }

    /// Fuses the rounding to a grid with the operation before it, if it has a kernel on codes.
    fn rounded(&self, rounding: &GraphStep, grid: FixedGrid) -> (GraphStep, Vec<usize>) {
        let (mut replaced, mut source) = (Vec::new(), rounding.inputs[0]);
        let mut function = None;
        if let Some((index, step)) = self.sole(&source) {
            if let GraphCall::Function(known @ (ElementFunction::Relu | ElementFunction::Relu6)) = step.call {
                function = Some(known);
                replaced.push(index);
                source = step.inputs[0];
            } else if let GraphCall::ConvThen(ConvThenCall {
                bounds: OutputBounds::Relu, has_shortcut: false, ..
            }) = step.call
            {
                function = Some(ElementFunction::Relu);
            }
        }
        let (kind, inputs) = match self.fixed_kind(&source) {
            Some((kind, inputs, others)) => {
                replaced.extend(others);
                (kind, inputs)
            }
            None => (FixedKind::Same, vec![source]),
        };
        (fused_step(GraphCall::Fixed(FixedCall { kind, function, grid }), inputs, rounding), replaced)
    }

    /// Returns the operation that computes a value, its inputs, and the steps that it replaces.
    fn fixed_kind(&self, source: &StepInput) -> Option<(FixedKind, Vec<StepInput>, Vec<usize>)> {
        let (index, step) = self.sole(source)?;
        let are_values = step.inputs.iter().all(|input| value_of(input).is_some());
        let known = |kind| Some((kind, step.inputs.clone(), vec![index]));
        match &step.call {
            GraphCall::Conv(_) | GraphCall::ConvThen(_) => self.fixed_conv(source, None),
            GraphCall::Function(ElementFunction::Add) => match step.inputs.as_slice() {
                [product, bias @ StepInput::Constant(_)] => {
                    let (kind, inputs, mut replaced) = self.fixed_conv(product, Some(*bias))?;
                    replaced.push(index);
                    Some((kind, inputs, replaced))
                }
                [_, _] if are_values => known(FixedKind::Add),
                _ => None,
            },
            GraphCall::Primitive(Primitive::Concat { axis: 1 }) if are_values => known(FixedKind::Join),
            GraphCall::Primitive(Primitive::Pool(window)) if window.kind == Reduction::Max => {
                known(FixedKind::MaxPool(window.clone()))
            }
            GraphCall::Primitive(Primitive::Reduce { axes, kind: Reduction::Mean }) if *axes == [2, 3] => {
                known(FixedKind::Mean)
            }
            GraphCall::Primitive(Primitive::AdaptivePool(size)) if *size == [1, 1] => known(FixedKind::Mean),
            _ => None,
        }
    }

    /// Returns a convolution and the zeros around its input.
    fn fixed_conv(
        &self,
        source: &StepInput,
        bias: Option<StepInput>,
    ) -> Option<(FixedKind, Vec<StepInput>, Vec<usize>)> {
        let (index, conv) = self.sole(source)?;
        let (layer, norm) = match &conv.call {
            GraphCall::Conv(layer) => (*layer, None),
            GraphCall::ConvThen(call) if bias.is_none() && !call.has_shortcut => (call.conv, call.norm),
            _ => return None,
        };
        let (mut zeros, mut x, mut replaced) = (ConvZeros::Given([[0; 2]; 2]), conv.inputs[0], vec![index]);
        if let Some((at_pad, pad)) = self.sole(&x)
            && let Some(around) = zeros_of(&pad.call)
        {
            zeros = around;
            x = pad.inputs[0];
            replaced.push(at_pad);
        }
        Some((FixedKind::Conv { layer, norm, zeros }, std::iter::once(x).chain(bias).collect(), replaced))
    }

    /// Fuses a ReLU with the convolution and norm before it, or with their sum with a shortcut.
    fn conv_relu(&self, relu: &GraphStep) -> Fused {
        let (at_before, before) = self.sole(relu.inputs.first()?)?;
        let bounds = OutputBounds::Relu;
        if let GraphCall::ConvThen(call) = &before.call
            && call.is_open()
        {
            let call = GraphCall::ConvThen(ConvThenCall { bounds, ..call.clone() });
            return Some((fused_step(call, before.inputs.clone(), relu), vec![at_before]));
        }
        let &[inner, shortcut] = before.inputs.as_slice() else { return None };
        if before.call != GraphCall::Function(ElementFunction::Add) || value_of(&shortcut).is_none() {
            return None;
        }
        let (at_conv, step) = self.sole(&inner)?;
        let GraphCall::ConvThen(call) = &step.call else { return None };
        let fused = GraphCall::ConvThen(ConvThenCall { bounds, has_shortcut: true, ..call.clone() });
        let inputs = vec![step.inputs[0], shortcut];
        call.is_open().then(|| (fused_step(fused, inputs, relu), vec![at_conv, at_before]))
    }
}

/// Returns the zeros that a step adds around images.
fn zeros_of(call: &GraphCall) -> Option<ConvZeros> {
    match call {
        GraphCall::Primitive(Primitive::Pad { before, after }) => match (before.as_slice(), after.as_slice()) {
            ([0, 0, top, left], [0, 0, bottom, right]) => Some(ConvZeros::Given([[*top, *bottom], [*left, *right]])),
            _ => None,
        },
        GraphCall::Primitive(Primitive::PadSame { size, stride }) => {
            let pair = |list: &[usize]| <[usize; 2]>::try_from(list).ok();
            Some(ConvZeros::Same { size: pair(size)?, stride: pair(stride)? })
        }
        _ => None,
    }
}
