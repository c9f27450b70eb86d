//! Runs the steps of a program.

mod conv_then;

use super::attend::{AttentionTap, RunTokens, attend, no_padding};
use super::dropout::GraphDropout;
use super::experts::experts;
use super::fixed::{fixed, of_codes};
use super::functional::apply_functional;
use super::functions::{apply, elementwise, expand, prepend_tokens, reshape, split, split_heads};
use super::layer::GraphLayer;
use super::named_layers::NamedLayers;
use super::primitives::{apply_primitive, fake_quantized};
use super::program::GraphProgram;
use super::recurrent::recurrent;
use super::slots::{SlotInput, StepSlots};
use super::steps::{AttentionCall, ExpertsCall, GraphCall, GraphStep, SelfAttentionCall};
use super::value::{AnyTensor, BinaryFunction, ValueObserver, with_tensor};
use crate::layers::{Linear, feed_forward, linears, normed, self_attention};
use briquette_core::Result;
use briquette_graph::ValueId;
use briquette_graph::op::{ElementFunction, Primitive};
use briquette_ops::compressed::FeedForwardActivation;
use briquette_ops::fused::swiglu;
use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;

/// The state of a run.
pub(super) struct GraphRun<'a> {
    layers: &'a NamedLayers,
    dropout: &'a GraphDropout,
    /// The values by their slots in the program.
    values: Vec<Option<AnyTensor>>,
    /// The constants of the program.
    constants: BTreeMap<usize, AnyTensor>,
    pub(super) tokens: RunTokens<'a>,
}

impl<'a> GraphRun<'a> {
    /// Begins a run from the values that its program is given, in the same order.
    pub(super) fn new(
        layers: &'a NamedLayers,
        dropout: &'a GraphDropout,
        given: Vec<(ValueId, AnyTensor)>,
        tokens: RunTokens<'a>,
    ) -> Self {
        let values = given.into_iter().map(|(_, value)| Some(value)).collect();
        Self { layers, dropout, values, constants: BTreeMap::new(), tokens }
    }

    /// Runs all steps and returns the wanted values.
    ///
    /// # Panics
    /// If a given value is missing or has another shape.
    pub(super) fn finish(mut self, program: &GraphProgram) -> Vec<AnyTensor> {
        self.run(program, program.steps.len());
        self.wanted(program)
    }

    /// Like [`finish`](Self::finish), and also returns what each attention layer computed.
    pub(super) fn finish_tapping(mut self, program: &GraphProgram) -> (Vec<AnyTensor>, Vec<AttentionTap>) {
        self.tokens.taps = Some(Vec::new());
        self.run(program, program.steps.len());
        let taps = self.tokens.taps.take().unwrap_or_default();
        (self.wanted(program), taps)
    }

    /// Runs all steps, and passes each of these values to `each` when it is computed.
    pub(super) fn finish_observing(
        mut self,
        program: &GraphProgram,
        values: &[ValueId],
        each: &mut ValueObserver,
    ) -> Result<()> {
        self.prepare(program);
        for (step, slots) in program.steps.iter().zip(&program.slots.steps) {
            let outputs = self.outputs(step, slots);
            for (value, output) in step.outputs.iter().zip(&outputs).filter(|(value, _)| values.contains(value)) {
                each(*value, &output.clone().decoded())?;
            }
            self.keep(slots, outputs);
        }
        Ok(())
    }

    /// Runs the first steps.
    fn run(&mut self, program: &GraphProgram, n_steps: usize) {
        self.prepare(program);
        program.steps[..n_steps].iter().zip(&program.slots.steps).for_each(|(step, slots)| self.step(step, slots));
    }

    /// Makes room for values, and copies constants to the device.
    fn prepare(&mut self, program: &GraphProgram) {
        if !program.constants.is_empty() {
            let device = self.values.iter().flatten().next().map_or_else(Device::default, AnyTensor::device);
            let held = program.constants.iter().map(|(at, constant)| (*at, constant.to_tensor(&device)));
            self.constants = held.collect();
        }
        self.values.resize_with(program.slots.n_slots.max(self.values.len()), || None);
    }

    fn wanted(&self, program: &GraphProgram) -> Vec<AnyTensor> {
        program.slots.wanted.iter().map(|slot| self.kept(*slot).decoded()).collect()
    }

    /// Passes the inputs of all layers to probes, without the output of the last linear layer.
    pub(super) fn observe(mut self, program: &GraphProgram) {
        let is_product = |step: &GraphStep| step.call.multiplies();
        let last = program.steps.iter().rposition(is_product).unwrap_or(program.steps.len());
        self.run(program, last);
        let Some((step, slots)) = program.steps.get(last).zip(program.slots.steps.get(last)) else { return };
        match &step.call {
            GraphCall::Linear(layer) => {
                with_tensor!(self.input(&slots.inputs[0]).decoded(), x => self.linear_layer(*layer).show_input(x));
            }
            GraphCall::FeedForward([up, down], function) => {
                let x = self.input(&slots.inputs[0]).decoded();
                let x = with_tensor!(x, x => self.linear_layer(*up).forward(x).into());
                with_tensor!(apply(*function, x), x => self.linear_layer(*down).show_input(x));
            }
            _ => self.step(step, slots),
        }
    }

    fn kept(&self, slot: usize) -> AnyTensor {
        self.values[slot].clone().expect("a value that was given or computed")
    }

    fn input(&mut self, input: &SlotInput) -> AnyTensor {
        match input {
            SlotInput::Kept(slot) => self.kept(*slot),
            SlotInput::Last(slot) => self.values[*slot].take().expect("a value that was given or computed"),
            SlotInput::Layer(layer) => self.layers.0[*layer].1.weight(),
            SlotInput::Constant(weight) => self.constants[weight].clone(),
        }
    }

    fn layer(&self, layer: usize) -> &'a GraphLayer {
        &self.layers.0[layer].1
    }

    fn linear_layer(&self, layer: usize) -> &'a Linear {
        match self.layer(layer) {
            GraphLayer::Linear(linear) => linear,
            other => panic!("found {other:?}, expected a linear layer"),
        }
    }

    fn step(&mut self, step: &GraphStep, slots: &StepSlots) {
        let outputs = self.outputs(step, slots);
        self.keep(slots, outputs);
    }

    /// Computes the outputs of a step.
    fn outputs(&mut self, step: &GraphStep, slots: &StepSlots) -> Vec<AnyTensor> {
        let inputs: Vec<AnyTensor> = slots.inputs.iter().map(|input| self.input(input)).collect();
        if let GraphCall::Fixed(call) = &step.call {
            let layers: Vec<_> = step.call.layers().into_iter().map(|layer| self.layer(layer)).collect();
            return vec![fixed(call, &layers, inputs)];
        }
        let mut inputs: Vec<AnyTensor> = inputs.into_iter().map(AnyTensor::decoded).collect();
        let outputs = match &step.call {
            GraphCall::Primitive(Primitive::Split { axis, sizes }) => split(&inputs.remove(0), *axis, sizes),
            GraphCall::Primitive(Primitive::Recurrent(layer)) => recurrent(layer, inputs),
            GraphCall::SplitHeads { heads, parts } => split_heads(inputs.remove(0).three(), *heads, *parts),
            GraphCall::Linears(layers) => self.linears(layers, inputs.remove(0)),
            call => vec![self.call(call, inputs)],
        };
        match step.drops {
            true => outputs.into_iter().map(|output| self.dropped(output)).collect(),
            false => outputs,
        }
    }

    fn keep(&mut self, slots: &StepSlots, outputs: Vec<AnyTensor>) {
        for (slot, output) in slots.outputs.iter().zip(outputs) {
            if let Some(slot) = slot {
                self.values[*slot] = Some(output);
            }
        }
    }

    /// Applies dropout to a hidden state, if the network is trained.
    fn dropped(&self, value: AnyTensor) -> AnyTensor {
        with_tensor!(value, x => self.dropout.hidden.forward(x).into())
    }

    /// Computes the only output of a step.
    fn call(&mut self, call: &GraphCall, mut inputs: Vec<AnyTensor>) -> AnyTensor {
        match call {
            GraphCall::Attention(attention) => return self.attention(attention, inputs),
            GraphCall::Function(function) => return elementwise(*function, inputs),
            GraphCall::Primitive(primitive) => return apply_primitive(primitive, inputs),
            GraphCall::PrependTokens => return prepend_tokens(inputs),
            GraphCall::Functional(call) => return apply_functional(call, inputs),
            _ => {}
        }
        let x = inputs.remove(0);
        match call {
            GraphCall::Linear(layer) => with_tensor!(x, x => self.linear_layer(*layer).forward(x).into()),
            GraphCall::Head(table, bias) => self.head_of_any_rank(x, *table, *bias),
            GraphCall::Embedding(layer) => self.embedding(*layer, x),
            GraphCall::LayerNorm(layer) => self.layer_norm(*layer, x, None),
            GraphCall::AddNorm(layer) => self.layer_norm(*layer, x, inputs.pop()),
            GraphCall::RmsNorm { layer, heads, offset } => self.rms_norm(*layer, x, *heads, *offset),
            GraphCall::BatchNorm(layer) => self.batch_norm(*layer, x),
            GraphCall::Conv(layer) => self.conv(*layer, x),
            GraphCall::ConvThen(call) => self.conv_then(call, x, inputs),
            GraphCall::SelfAttention(call) => self.self_attention(call, x.three()),
            GraphCall::FeedForward(layers, function) => self.feed_forward(*layers, *function, x),
            GraphCall::Gate(ElementFunction::Silu) => match (x, inputs.remove(0)) {
                (AnyTensor::Three(gate), AnyTensor::Three(up)) => swiglu(gate, up).into(),
                (gate, up) => apply(ElementFunction::Silu, gate).zip(up, BinaryFunction::Mul),
            },
            GraphCall::Experts(call) => self.experts(call, [x.three(), inputs.remove(0).three()]),
            GraphCall::Gate(function) => apply(*function, x).zip(inputs.remove(0), BinaryFunction::Mul),
            GraphCall::Reshape { from, to } => reshape(x, from, to),
            GraphCall::Expand { from, to } => expand(x, from, to),
            GraphCall::SpaceToTokens => x.four().flatten::<3>(2, 3).swap_dims(1, 2).into(),
            GraphCall::TakeToken(index) => x.three().narrow(1, *index, 1).squeeze_dim::<2>(1).into(),
            GraphCall::Attention(_)
            | GraphCall::Function(_)
            | GraphCall::Primitive(_)
            | GraphCall::Functional(_)
            | GraphCall::Linears(_)
            | GraphCall::PrependTokens
            | GraphCall::Fixed(_) => unreachable!("above"),
            GraphCall::SplitHeads { .. } => unreachable!("has several outputs"),
        }
    }

    fn embedding(&self, layer: usize, ids: AnyTensor) -> AnyTensor {
        match self.layer(layer) {
            GraphLayer::Embedding(table) => match ids {
                AnyTensor::Ids(ids) => table.forward(ids).into(),
                floats => {
                    let (mut dims, flat) = (floats.dims(), floats.flat_ids().unsqueeze::<2>());
                    let rows: AnyTensor = table.forward(flat).into();
                    dims.extend(rows.dims().last());
                    rows.reshaped(&dims)
                }
            },
            other => panic!("found {other:?}, expected a table"),
        }
    }

    fn head_of_any_rank(&self, x: AnyTensor, table: usize, bias: Option<usize>) -> AnyTensor {
        if let AnyTensor::Three(x) = x {
            return self.head(x, table, bias);
        }
        let mut dims = x.dims();
        let width = dims.pop().unwrap_or(1);
        let n = dims.iter().product();
        let logits = self.head(x.reshaped(&[1, n, width]).three(), table, bias);
        dims.extend(logits.dims().last());
        logits.reshaped(&dims)
    }

    fn head(&self, x: Tensor<3>, table: usize, bias: Option<usize>) -> AnyTensor {
        let GraphLayer::Embedding(table) = self.layer(table) else { panic!("expected a table") };
        let logits: AnyTensor = table.product(x).into();
        match bias {
            Some(bias) => logits.zip(self.layer(bias).weight(), BinaryFunction::Add),
            None => logits,
        }
    }

    fn layer_norm(&self, layer: usize, x: AnyTensor, shortcut: Option<AnyTensor>) -> AnyTensor {
        let GraphLayer::LayerNorm(norm) = self.layer(layer) else { panic!("expected a layer norm") };
        match (x, shortcut) {
            (x, None) => with_tensor!(x, x => norm.forward(x).into()),
            (AnyTensor::Three(x), Some(AnyTensor::Three(shortcut))) => {
                // Positions are the same for every item.
                let (of_x, of_shortcut) = (x.dims(), shortcut.dims());
                let dims: [usize; 3] = std::array::from_fn(|axis| of_x[axis].max(of_shortcut[axis]));
                norm.forward_sum(x.expand(dims), shortcut.expand(dims)).into()
            }
            (x, Some(shortcut)) => {
                let sum = x.zip(shortcut, BinaryFunction::Add);
                with_tensor!(sum, x => norm.forward(x).into())
            }
        }
    }

    /// Norms the last axis, or each head of it; `offset` is added to the weight.
    fn rms_norm(&self, layer: usize, x: AnyTensor, heads: usize, offset: f64) -> AnyTensor {
        let GraphLayer::RmsNorm(norm) = self.layer(layer) else { panic!("expected an RMS norm") };
        let dims = x.dims();
        if heads > 1 {
            let by_head = x.reshaped(&[dims[0], dims[1], heads, dims[2] / heads]);
            return self.rms_norm(layer, by_head, 1, offset).reshaped(&dims);
        }
        match x {
            x if offset == 0.0 => with_tensor!(x, x => normed(norm, x).into()),
            x => with_tensor!(x, x => {
                let rank = x.dims().len();
                let scale = (x.clone().square().mean_dim(rank - 1) + norm.epsilon).sqrt();
                AnyTensor::from(x / scale).zip((norm.gamma.val() + offset).into(), BinaryFunction::Mul)
            }),
        }
    }

    fn batch_norm(&self, layer: usize, x: AnyTensor) -> AnyTensor {
        let GraphLayer::BatchNorm(norm) = self.layer(layer) else { panic!("expected a batch norm") };
        with_tensor!(x, x => norm.forward(x).into())
    }

    fn conv(&self, layer: usize, x: AnyTensor) -> AnyTensor {
        match self.layer(layer) {
            GraphLayer::Conv2d(conv) => conv.forward(x.four()).into(),
            GraphLayer::Conv1d(conv) => conv.forward(x.three()).into(),
            other => panic!("found {other:?}, expected a convolution"),
        }
    }

    fn experts(&self, call: &ExpertsCall, [x, logits]: [Tensor<3>; 2]) -> AnyTensor {
        let matrices = call.matrices.iter().map(|layers| layers.map(|layer| self.linear_layer(layer)));
        experts(x, logits, &matrices.collect::<Vec<_>>(), call).into()
    }

    fn attention(&mut self, call: &AttentionCall, inputs: Vec<AnyTensor>) -> AnyTensor {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("query, key and value");
        let qkv = [next().three(), next().three(), next().three()];
        let bias = inputs.next().map(|bias| bias.with_rank(4).four());
        attend(qkv, bias, call, &mut self.tokens, &self.dropout.attention).into()
    }

    fn self_attention(&mut self, call: &SelfAttentionCall, x: Tensor<3>) -> AnyTensor {
        let SelfAttentionCall { layers, grids, attention } = call;
        let layers = layers.map(|layer| self.linear_layer(layer));
        let padding = self.tokens.padding.get_or_insert_with(|| no_padding(&x)).clone();
        // The fused kernel keeps no probabilities.
        if self.tokens.taps.is_none()
            && let Some(attended) = self_attention(&x, layers, *grids, attention.settings.heads, &padding)
        {
            return attended.into();
        }
        let rounded = |(at, x): (usize, Tensor<3>)| match grids {
            Some(grids) => fake_quantized(x, of_codes(grids[at])),
            None => x,
        };
        let qkv: Vec<_> = linears(&x, &layers).into_iter().enumerate().map(rounded).collect();
        let qkv = qkv.try_into().expect("an output for each layer");
        attend(qkv, None, attention, &mut self.tokens, &self.dropout.attention).into()
    }

    fn linears(&self, layers: &[usize], x: AnyTensor) -> Vec<AnyTensor> {
        let layers: Vec<&Linear> = layers.iter().map(|layer| self.linear_layer(*layer)).collect();
        with_tensor!(x, x => linears(&x, &layers).into_iter().map(AnyTensor::from).collect())
    }

    fn feed_forward(&self, layers: [usize; 2], function: ElementFunction, x: AnyTensor) -> AnyTensor {
        let [up, down] = layers.map(|layer| self.linear_layer(layer));
        if let AnyTensor::Three(x) = &x
            && let Some(known) = on_codes(function)
            && let Some(found) = feed_forward(x, [up, down], known)
        {
            return found.into();
        }
        let inner = with_tensor!(x, x => up.forward(x).into());
        with_tensor!(apply(function, inner), x => down.forward(x).into())
    }
}

/// Returns the function for fused blocks on codes, if supported.
fn on_codes(function: ElementFunction) -> Option<FeedForwardActivation> {
    match function {
        ElementFunction::Gelu => Some(FeedForwardActivation::Gelu),
        ElementFunction::Relu => Some(FeedForwardActivation::Relu),
        _ => None,
    }
}
