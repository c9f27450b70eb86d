//! The quantized values and layers of a model, and their numbers.

use crate::absorb::NormPlace;
use crate::graph::{ValueId, WeightId};
use crate::to_onnx::OnnxNetwork;
use std::collections::BTreeMap;

/// The scale and zero point of a uint8 value: `value = (code - zero) · scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationScale {
    /// The step between neighbouring codes.
    pub scale: f32,
    /// The code of 0.
    pub zero: u8,
}

impl ActivationScale {
    /// From 0 to 1.
    const UNIT: Self = Self { scale: 1.0 / 255.0, zero: 0 };
}

/// The numbers of a layer beside its codes.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerCodes {
    /// The scale of each output channel.
    pub scales: Vec<f32>,
    /// The bias in steps of the input scale times the weight scale; unused by [`StaticKind::MatMul`].
    pub bias: Vec<i32>,
}

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
    pub(super) name: String,
    /// The value of the graph.
    pub id: Option<ValueId>,
    /// How its scale is chosen.
    pub scale: ValueScale,
    /// Whether a float operator computes it. Other float operators then read the floats.
    pub(super) is_float: bool,
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
    /// The index of the input in [`StaticPlan::values`] or [`PairedPlan::scales`](super::PairedPlan::scales).
    pub input: usize,
    /// The index of the node.
    pub(super) node: usize,
}

/// The quantized values and layers of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticPlan {
    pub(super) network: OnnxNetwork,
    /// The values that are stored as uint8.
    pub values: Vec<StaticValue>,
    /// The layers with int8 weights.
    pub layers: Vec<StaticLayer>,
    /// Whether each node reads and computes quantized values.
    pub(super) is_quantized: Vec<bool>,
}

impl StaticPlan {
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
}
