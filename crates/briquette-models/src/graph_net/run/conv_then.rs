//! Runs convolutions with the operations after them.

use super::GraphRun;
use crate::graph_net::functions::apply;
use crate::graph_net::layer::GraphLayer;
use crate::graph_net::steps::ConvThenCall;
use crate::graph_net::value::{AnyTensor, BinaryFunction};
use crate::layers::{After, Then};
use briquette_cpu::OutputBounds;
use briquette_graph::op::ElementFunction;

impl GraphRun<'_> {
    /// Computes a step. `inputs` are those after `x`: a bias, then a shortcut.
    pub(super) fn conv_then(&self, call: &ConvThenCall, x: AnyTensor, mut inputs: Vec<AnyTensor>) -> AnyTensor {
        let shortcut = if call.has_shortcut { inputs.pop() } else { None };
        let bias = if call.has_bias { inputs.pop() } else { None };
        let GraphLayer::Conv2d(conv) = self.layer(call.conv) else { return self.one_by_one(call, x, [bias, shortcut]) };
        let n_out = conv.weight.lazy_shape()[0];
        let is_known = bias.as_ref().is_none_or(|bias| is_by_channel(bias, n_out));
        if !is_known || shortcut.as_ref().is_some_and(|shortcut| shortcut.dims().len() != 4) {
            return self.one_by_one(call, x, [bias, shortcut]);
        }
        let after = match (call.norm.map(|norm| self.layer(norm)), bias) {
            (Some(GraphLayer::BatchNorm(norm)), _) => After::Norm(norm),
            (Some(other), _) => panic!("found {other:?}, expected a batch norm"),
            (None, Some(bias)) => After::Bias(bias.reshaped(&[n_out]).one()),
            (None, None) => After::Nothing,
        };
        let x = x.four();
        let device = x.device();
        let multiplies =
            |layer: &usize| matches!(self.layer(*layer), GraphLayer::Conv2d(conv) if conv.multiplies_codes(&device));
        let channels_last = !call.readers.is_empty() && call.readers.iter().all(multiplies);
        let then = Then { shortcut: shortcut.map(AnyTensor::four), bounds: call.bounds, channels_last };
        conv.forward_then(x, after, then).into()
    }

    /// Computes the operations of a step one after the other.
    fn one_by_one(&self, call: &ConvThenCall, x: AnyTensor, summands: [Option<AnyTensor>; 2]) -> AnyTensor {
        let y = self.conv(call.conv, x);
        let y = call.norm.into_iter().fold(y, |y, norm| self.batch_norm(norm, y));
        let y = summands.into_iter().flatten().fold(y, |y, more| y.zip(more, BinaryFunction::Add));
        with_bounds(y, call.bounds)
    }
}

/// Returns whether a bias is one number for each channel, `[channels, 1, 1]` or `[1, channels, 1, 1]`.
fn is_by_channel(bias: &AnyTensor, n_channels: usize) -> bool {
    match bias.dims().as_slice() {
        [rest @ .., n, 1, 1] => *n == n_channels && rest.iter().all(|n| *n == 1),
        _ => false,
    }
}

fn with_bounds(y: AnyTensor, bounds: OutputBounds) -> AnyTensor {
    match bounds {
        OutputBounds::None => y,
        OutputBounds::Relu => apply(ElementFunction::Relu, y),
        OutputBounds::Relu6 => apply(ElementFunction::Relu6, y),
    }
}
