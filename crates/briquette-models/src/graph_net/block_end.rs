//! The linear layer at the end of a block, and the norm between its outputs and the block's, if there is one.

use super::value::with_tensor;
use super::{AnyTensor, GraphNet, LinearGroup};
use crate::block_state::BlockState;
use crate::graph_net::RunInputs;
use briquette_graph::op::{Composite, ElementFunction, Op, Primitive};
use briquette_graph::{Node, Operand, ValueId};
use burn::tensor::{FloatDType, Tensor};

/// A linear layer whose outputs make a block's output together with the residual stream.
///
/// | output of the block | families |
/// |---|---|
/// | `layer + stream` | Llama, GPT-2 |
/// | `norm(layer + stream)` | BERT |
/// | `norm(layer) + stream` | OLMo 2, Gemma 2 |
#[derive(Debug, Clone, PartialEq)]
pub struct BlockEnd {
    group: LinearGroup,
    norm: Option<EndNorm>,
}

/// A norm over the last axis.
#[derive(Debug, Clone, PartialEq)]
struct EndNorm {
    input: ValueId,
    layer: usize,
    /// Whether it subtracts the mean, as a layer norm does.
    is_centered: bool,
    eps: f64,
    /// Added to the weight.
    offset: f64,
}

/// The values at a [`BlockEnd`] in a run.
///
/// If the layer's outputs change by a small `d`, the block's output changes by `factors · d / divisors`.
#[derive(Debug, Clone)]
pub struct EndValues {
    /// The inputs of the layer.
    pub input: AnyTensor,
    /// The divisor of each vector in the norm, `[.., 1]` in f32; `None` without a norm.
    pub divisors: Option<AnyTensor>,
    /// The weight of the norm, `[width]`; `None` without a norm.
    pub factors: Option<Tensor<1>>,
}

impl BlockEnd {
    /// Returns the path of the layer.
    pub fn path(&self) -> &str {
        self.group.paths().next().unwrap_or_default()
    }
}

impl EndNorm {
    /// Returns `sqrt(mean(x²) + eps)` of each vector; a layer norm subtracts its mean before.
    fn divisors(&self, x: AnyTensor) -> AnyTensor {
        with_tensor!(x, x => {
            let (axis, x) = (x.dims().len() - 1, x.cast(FloatDType::F32));
            let x = if self.is_centered { x.clone() - x.mean_dim(axis) } else { x };
            (x.square().mean_dim(axis) + self.eps).sqrt().into()
        })
    }
}

impl GraphNet {
    /// Returns the linear layer at the end of a block.
    ///
    /// `None` if the output is made in another way, as where a scale follows the layer.
    pub fn block_end(&self, index: usize) -> Option<BlockEnd> {
        let [output] = self.outline.cuts.state(index + 1) else { return None };
        let made = self.maker(index, *output)?;
        let (sum, after) = match self.norm(made) {
            Some(norm) => (self.maker(index, norm.input)?, Some(norm)),
            None => (made, None),
        };
        let Op::Primitive(Primitive::Elementwise(ElementFunction::Add)) = &sum.op else { return None };
        let parts = || sum.values().map(|(_, value)| value);
        if let Some(group) = parts().find_map(|value| self.layer_alone(index, value)) {
            return Some(BlockEnd { group, norm: after });
        }
        let normed = |value| self.maker(index, value).and_then(|node| self.norm(node));
        let norm = parts().find_map(normed).filter(|_| after.is_none())?;
        Some(BlockEnd { group: self.layer_alone(index, norm.input)?, norm: Some(norm) })
    }

    /// Returns the values at the end of a block. Only what they depend on is computed.
    ///
    /// # Panics
    /// If the end is of another block.
    pub fn end_values(&self, index: usize, end: &BlockEnd, state: BlockState, inputs: &RunInputs) -> EndValues {
        let normed = end.norm.as_ref().map(|norm| norm.input);
        let wanted: Vec<ValueId> = std::iter::once(end.group.input).chain(normed).collect();
        let mut found = self.values_of_block(index, &wanted, state, inputs).into_iter();
        let input = found.next().expect("the input of the layer");
        let divisors = end.norm.as_ref().zip(found.next()).map(|(norm, x)| norm.divisors(x));
        let factors = |norm: &EndNorm| self.layers.0[norm.layer].1.weight().one().cast(FloatDType::F32) + norm.offset;
        EndValues { input, divisors, factors: end.norm.as_ref().map(factors) }
    }

    /// Returns the node of a block that computes a value.
    fn maker(&self, index: usize, value: ValueId) -> Option<&Node> {
        self.graph().nodes[self.outline.cuts.nodes(index)].iter().find(|node| node.outputs.contains(&value))
    }

    /// Returns the linear layer whose outputs are this value, if no other layer has its inputs.
    fn layer_alone(&self, index: usize, output: ValueId) -> Option<LinearGroup> {
        let (.., path) = self.linear(self.maker(index, output)?)?;
        self.linear_groups(index).into_iter().find(|group| group.paths().eq([path]))
    }

    /// Returns a norm over the last axis with its layer.
    fn norm(&self, node: &Node) -> Option<EndNorm> {
        let [Operand::Value(input), Operand::Weight(weight), ..] = &node.inputs[..] else { return None };
        let layer = self.outline.index.of_weight(*weight)?;
        let (is_centered, eps, offset) = match &node.op {
            Op::Composite(Composite::LayerNorm { eps }) => (true, *eps, 0.0),
            Op::Composite(Composite::RmsNorm { eps, offset }) => (false, *eps, *offset),
            _ => return None,
        };
        Some(EndNorm { input: *input, layer, is_centered, eps, offset })
    }
}

#[cfg(test)]
mod tests {
    use crate::graph_net::GraphNet;
    use briquette_formats::Checkpoint;
    use burn::tensor::Device;

    #[test]
    fn the_last_layer_and_the_norm_after_it_are_found() {
        let end = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
            let net = GraphNet::unfilled(&Checkpoint::open(&path).unwrap(), &Device::flex()).unwrap().0;
            let end = net.block_end(0)?;
            Some((end.path().to_string(), end.norm.map(|norm| (norm.is_centered, norm.offset))))
        };
        let found = |path: &str, norm| Some((path.to_string(), norm));
        assert_eq!(end("llama"), found("model.layers.0.mlp.down_proj", None));
        assert_eq!(end("gpt2"), found("transformer.h.0.mlp.c_proj", None));
        assert_eq!(end("bert"), found("bert.encoder.layer.0.output.dense", Some((true, 0.0))));
        assert_eq!(end("olmo2"), found("model.layers.0.mlp.down_proj", Some((false, 0.0))));
        assert_eq!(end("gemma2"), found("model.layers.0.mlp.down_proj", Some((false, 1.0))));
        assert_eq!(end("dinov2"), None, "a scale follows");
    }
}
