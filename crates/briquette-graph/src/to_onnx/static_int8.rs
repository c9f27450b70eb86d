//! Static int8: quantizes convolutions and linear layers of an ONNX model with fixed scales of activations.
//!
//! [`StaticPlan::new`] chooses the quantized operators. It folds batch norms into convolutions, and merges ReLU and ReLU6 into the
//! range of the operator before them. A caller observes the values and computes codes; [`StaticPlan::finish`] then writes pairs of
//! `QuantizeLinear` and `DequantizeLinear` (QDQ), which onnxruntime fuses to `QLinearConv`, `QLinearAdd` and `QGemm`.
//!
//! Activations are uint8 with one scale for each value, weights are int8 with a scale for each output channel, and biases are int32 with
//! the product of both scales.

mod check;
mod choose;
mod fold;
mod insert;
mod names;
mod prune;

pub use insert::{ActivationScale, LayerCodes};

use super::OnnxNetwork;
use crate::absorb::NormPlace;
use crate::graph::{ValueId, WeightId};
use crate::op::{Composite, Op};
use briquette_core::{Error, Result};
use briquette_formats::onnx_write::OnnxNode;
use std::collections::BTreeMap;

/// How the scale of a quantized value is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueScale {
    /// From the observed range of a value of the graph.
    Observed(ValueId),
    /// The scale of an earlier value, by its index: pools and reshapes keep codes.
    Same(usize),
    /// From 0 to 1: sigmoids.
    Unit,
}

/// A value that is stored as uint8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticValue {
    /// The name in the model.
    name: String,
    /// The value of the graph.
    pub id: Option<ValueId>,
    /// How its scale is chosen.
    pub scale: ValueScale,
    /// Whether a float operator computes it. Other float operators then read the floats.
    is_float: bool,
}

/// The operator of a quantized layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StaticKind {
    /// A convolution.
    Conv,
    /// A linear layer of `[batch, features]`.
    Gemm,
    /// A linear layer of more axes. Its output and bias are floats.
    MatMul,
}

/// A layer with int8 weights.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticLayer {
    /// The operator.
    pub kind: StaticKind,
    /// The weight, whose first axis counts outputs.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
    /// The batch norm that the layer absorbs.
    pub norm: Option<NormPlace>,
    /// The index of the input in [`StaticPlan::values`].
    pub input: usize,
    /// The index of the node.
    node: usize,
}

/// The quantized values and layers of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticPlan {
    network: OnnxNetwork,
    /// The values that are stored as uint8.
    pub values: Vec<StaticValue>,
    /// The layers with int8 weights.
    pub layers: Vec<StaticLayer>,
    /// Whether each node reads and computes quantized values.
    is_quantized: Vec<bool>,
}

impl StaticPlan {
    /// Chooses the quantized values and layers of a float model.
    ///
    /// # Errors
    /// Config: the network has no convolution, or attention.
    pub fn new(mut network: OnnxNetwork) -> Result<Self> {
        check_convolutional(&network)?;
        let norms = fold::fold_norms(&mut network);
        choose::choose(network, &norms)
    }

    /// Returns the network.
    pub fn network(&self) -> &OnnxNetwork {
        &self.network
    }

    /// Returns the values to observe, each with the value whose range it has: inputs of layers, and values with a range of their own.
    pub fn observed(&self) -> BTreeMap<ValueId, ValueId> {
        let own = self.values.iter().filter_map(|value| match value.scale {
            ValueScale::Observed(id) => Some((id, id)),
            ValueScale::Same(_) | ValueScale::Unit => None,
        });
        let inputs =
            self.layers.iter().filter_map(|layer| Some((self.values[layer.input].id?, self.root(layer.input)?)));
        own.chain(inputs).collect()
    }

    /// Returns the observed value whose range a value has.
    fn root(&self, place: usize) -> Option<ValueId> {
        match self.values[place].scale {
            ValueScale::Observed(id) => Some(id),
            ValueScale::Same(before) => self.root(before),
            ValueScale::Unit => None,
        }
    }

    /// Returns the scale of each value: `of` gives those of observed values.
    pub fn scales(&self, of: &dyn Fn(ValueId) -> ActivationScale) -> Vec<ActivationScale> {
        let mut found: Vec<ActivationScale> = Vec::with_capacity(self.values.len());
        for value in &self.values {
            found.push(match value.scale {
                ValueScale::Observed(id) => of(id),
                ValueScale::Same(index) => found[index],
                ValueScale::Unit => ActivationScale::UNIT,
            });
        }
        found
    }

    /// Returns the quantized model. `scales` has an entry for each value, `codes` for each layer.
    ///
    /// # Errors
    /// Bug: a quantized operator would read or compute floats.
    pub fn finish(self, scales: &[ActivationScale], codes: &[LayerCodes]) -> Result<OnnxNetwork> {
        let network = insert::insert(self, scales, codes);
        let network = prune::without_unused(network);
        check::check(&network.model)?;
        Ok(network)
    }
}

/// Refuses networks that run faster or better with dynamic scales.
fn check_convolutional(network: &OnnxNetwork) -> Result<()> {
    let is_conv = |node: &OnnxNode| node.op == "Conv";
    let has_attention =
        network.graph.nodes.iter().any(|node| matches!(node.op, Op::Composite(Composite::Attention(_))));
    let found = match (network.model.nodes.iter().any(is_conv), has_attention) {
        (true, false) => return Ok(()),
        (_, true) => "attention",
        (false, false) => "no convolution",
    };
    let family = &network.graph.family;
    let message = format!("found {family} with {found}, expected a convolutional network for int8-static");
    Err(Error::config(format!("{message}; use --quantize int8-dynamic")))
}
