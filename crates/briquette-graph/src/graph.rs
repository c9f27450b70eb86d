//! The graph: nodes, values, weights and blocks. It holds no weight values.

use crate::op::Op;
use briquette_core::{DType, OutputAxis, Shape};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The index of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ValueId(pub usize);

/// The index of a weight in [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WeightId(pub usize);

/// The index of a node in [`Graph::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub usize);

/// An input of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operand {
    /// An activation.
    Value(ValueId),
    /// A weight.
    Weight(WeightId),
}

impl From<ValueId> for Operand {
    fn from(value: ValueId) -> Self {
        Self::Value(value)
    }
}

impl From<WeightId> for Operand {
    fn from(weight: WeightId) -> Self {
        Self::Weight(weight)
    }
}

/// An operation with its inputs and outputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node<O = Op> {
    /// The node's name; for a layer, its path in the checkpoint.
    pub name: String,
    /// The operation.
    pub op: O,
    /// Activations and weights, in the order that the operation documents.
    pub inputs: Vec<Operand>,
    /// The values that the node computes.
    pub outputs: Vec<ValueId>,
}

impl<O> Node<O> {
    /// The weights among the inputs, with their position.
    pub fn weights(&self) -> impl Iterator<Item = (usize, WeightId)> + '_ {
        self.inputs.iter().enumerate().filter_map(|(position, operand)| match operand {
            Operand::Weight(weight) => Some((position, *weight)),
            Operand::Value(_) => None,
        })
    }

    /// The values among the inputs, with their position.
    pub fn values(&self) -> impl Iterator<Item = (usize, ValueId)> + '_ {
        self.inputs.iter().enumerate().filter_map(|(position, operand)| match operand {
            Operand::Value(value) => Some((position, *value)),
            Operand::Weight(_) => None,
        })
    }
}

/// A tensor of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Weight {
    /// The name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// The axis that counts outputs.
    pub layout: OutputAxis,
    /// Other names of the same weight: tied weights, and names in other programs.
    pub aliases: Vec<String>,
    /// Whether it is a buffer, such as running statistics, and no parameter.
    pub is_buffer: bool,
}

impl Weight {
    /// Bytes of the dense weight.
    pub fn n_bytes(&self) -> u64 {
        let n_bits = self.shape.0.iter().fold(self.dtype.n_bits() as u64, |n, &extent| n.saturating_mul(extent as u64));
        n_bits.div_ceil(8)
    }
}

/// A named input of the graph with the shape that analyses use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GraphInput {
    /// The value.
    pub value: ValueId,
    /// The extents.
    pub shape: Vec<usize>,
    /// How a program makes it.
    pub source: InputSource,
}

/// How a program makes an input of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSource {
    /// The caller gives it: graphs built by hand.
    Caller,
    /// Token ids, `[batch, tokens]`.
    TokenIds,
    /// 1 at tokens and 0 at padding, `[batch, tokens]`: a mask of an ONNX model.
    AttentionMask,
    /// The share of each token among those of its text, `[batch, tokens, 1]`: one over their number, and 0 at padding.
    TokenShares,
    /// Positions of tokens, `[batch, tokens]`.
    PositionIds {
        /// The position of the first token.
        offset: usize,
        /// Whether padding is not counted. A padding token then has position `offset - 1`.
        skips_padding: bool,
    },
    /// The segment of each token, `[batch, tokens]`: 0, and 1 for the second text of a pair.
    TokenTypeIds,
    /// The bucket of the distance from each query to each key, `[tokens, tokens]`, as T5 counts them.
    ///
    /// For `d = key - query` and `half = buckets / 2`: the bucket is `half` if `d > 0`, else 0, plus `|d|` if `|d| < half / 2`, else plus
    /// `half / 2 + ln(|d| / (half / 2)) / ln(longest / (half / 2)) · (half - half / 2)`, rounded down and at most `half - 1`.
    RelativeBuckets {
        /// Number of buckets.
        buckets: usize,
        /// Distances from here on have one bucket.
        longest: usize,
    },
    /// Token ids of the text that a decoder with an encoder predicts, `[batch, targets]`.
    TargetIds,
    /// Positions of the target's tokens, `[batch, targets]`; padding counts.
    TargetPositionIds {
        /// The position of the first token.
        offset: usize,
    },
    /// The bucket of the distance from each query back to each key, `[targets, targets]`, as T5's decoder counts them.
    ///
    /// For `d = max(query - key, 0)` and `half = buckets / 2`: the bucket is `d` if `d < half`, else
    /// `half + ln(d / half) / ln(longest / half) · (buckets - half)`, rounded down and at most `buckets - 1`.
    TargetBuckets {
        /// Number of buckets.
        buckets: usize,
        /// Distances from here on have one bucket.
        longest: usize,
    },
    /// Features of a sound, `[batch, features, frames]`: Whisper's log-mel spectrogram.
    SoundFeatures,
    /// The number of the relative position of each query and key in a square window, `[patches, patches]`, as Swin counts them.
    ///
    /// For `w = window`: `(query row - key row + w - 1) · (2 w - 1) + query column - key column + w - 1`.
    WindowDistances {
        /// The side of a window, in patches.
        window: usize,
    },
    /// -100 where a query of a shifted window must not see a key, else 0: `[batch · windows, 1, patches, patches]`.
    ///
    /// A shift brings patches of opposite sides of the image into one window. A program may give the windows of one image.
    WindowMask {
        /// Rows and columns of patches.
        grid: [usize; 2],
        /// The side of a window, in patches.
        window: usize,
        /// Rows and columns that were moved to the end.
        shift: [usize; 2],
    },
    /// Normalized images, `[batch, channels, height, width]`.
    Images,
}

/// A range of nodes that repeats, such as a transformer layer or a residual block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Block {
    /// The path of its tensors in the checkpoint, such as `encoder.layer.3`.
    pub name: String,
    /// The nodes.
    pub nodes: Range<usize>,
}

/// A network: operations, their weights, named inputs and outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Graph {
    /// The family that built it; empty for a graph built by hand.
    pub family: String,
    /// The operations, each after the operations that it depends on.
    pub nodes: Vec<Node>,
    /// The name of each value.
    pub values: Vec<String>,
    /// The weights that nodes use.
    pub weights: Vec<Weight>,
    /// The inputs.
    pub inputs: Vec<GraphInput>,
    /// The outputs. Their extents are fixed.
    pub outputs: Vec<ValueId>,
    /// Ranges of nodes that repeat.
    pub blocks: Vec<Block>,
    /// Tensors of the checkpoint that no node uses, such as counters and position ids.
    pub unused: Vec<String>,
    /// The elements of weights that the graph itself holds, by name: computed constants of an ONNX model.
    #[serde(skip)]
    pub constants: BTreeMap<String, Vec<f64>>,
}

impl Graph {
    /// The weight of this name or alias.
    pub fn weight(&self, name: &str) -> Option<WeightId> {
        let has_name = |weight: &Weight| weight.name == name || weight.aliases.iter().any(|alias| alias == name);
        self.weights.iter().position(has_name).map(WeightId)
    }

    /// Whether images are an input.
    pub fn takes_images(&self) -> bool {
        self.inputs.iter().any(|input| input.source == InputSource::Images)
    }

    /// Number of elements of all parameters, buffers left out.
    pub fn n_parameters(&self) -> usize {
        let parameters = self.weights.iter().filter(|weight| !weight.is_buffer);
        parameters.map(|weight| weight.shape.0.iter().product::<usize>()).sum()
    }
}
