//! The traits of networks. A new architecture implements them in its own file and gets an entry in `arch.rs`.

use crate::block_state::BlockState;
use crate::cache::KeyValues;
use crate::graph_net::{AnyTensor, RunInputs};
use crate::low_rank::Linears;
use crate::student_config::Smaller;
use briquette_core::Result;
use briquette_cpu::float::CacheType;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde_json::{Map, Value};

/// A network of any architecture. Methods of other tasks have default implementations.
pub(crate) trait Architecture: Linears {
    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    fn classify(&self, _images: Tensor<4>) -> Tensor<2> {
        panic!("not a classifier")
    }

    /// Maps tokens and padding `[batch, length]` to hidden states `[batch, length, width]`.
    fn encode(&self, _tokens: Tensor<2, Int>, _padding: Tensor<2, Bool>) -> Tensor<3> {
        panic!("not an encoder")
    }

    /// Returns the network as a decoder.
    fn as_decoder(&self) -> &dyn Decoder {
        panic!("not a decoder")
    }

    /// Returns the network as a sequence of blocks, if it is one.
    fn as_blocks(&self) -> Option<&dyn Blocks> {
        None
    }

    /// Returns the number of layers that a student can choose from.
    fn n_choosable_layers(&self) -> Option<usize> {
        None
    }

    /// Creates a smaller network and updates its config.json; `None` if the architecture does not support it.
    ///
    /// New weights are initialized when they are first read.
    fn smaller(&self, _config: &mut Map<String, Value>, _how: &Smaller, _device: &Device) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        Ok(None)
    }
}

/// A network whose blocks can run one at a time.
pub trait Blocks {
    /// Returns the number of blocks.
    fn n_blocks(&self) -> usize;

    /// Returns the paths of a block's modules, such as `model.layers.3`; one path if all are below it.
    fn block_paths(&self, index: usize) -> Vec<String>;

    /// Returns the first block's input.
    fn enter(&self, inputs: &RunInputs) -> BlockState;

    /// Returns the output of a block. Of the inputs, text is needed, and images are not.
    fn block(&self, index: usize, state: BlockState, inputs: &RunInputs) -> BlockState;

    /// Passes the layer inputs of a block to probes. The output of the last layer need not be computed.
    fn only_show(&self, index: usize, state: BlockState, inputs: &RunInputs) {
        drop(self.block(index, state, inputs));
    }

    /// Maps the output of the last block to the last hidden state, or to a classifier's logits.
    fn leave(&self, state: BlockState) -> AnyTensor;

    /// Returns the paths of modules that are needed only after the last block: norm, head.
    fn exit_paths(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether the embedding is needed again after the last block, as a tied head.
    fn exit_needs_entry(&self) -> bool {
        false
    }

    /// Returns the paths of convolutions with several groups, whose inputs probes do not observe.
    fn grouped_paths(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the elements that a block computes for each element of its input. `None` if not known.
    fn growth(&self, _index: usize) -> Option<f64> {
        None
    }
}

/// A network that predicts the next token.
pub trait Decoder {
    /// Maps tokens `[batch, length]` to the head's input `[batch, length, width]`.
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// Applies the head: `[batch, length, width]` to logits `[batch, length, vocabulary]`.
    fn scores(&self, last_state: Tensor<3>) -> Tensor<3>;

    /// Returns the size of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the longest sequence in tokens.
    fn max_positions(&self) -> usize;

    /// Creates an empty key-value cache for one sequence.
    fn key_values(&self, kind: CacheType) -> KeyValues;

    /// Maps tokens `[batch, n]` that continue the cached sequences to the head's input `[batch, n, width]`.
    ///
    /// Appends their keys and values to the caches, one cache per sequence.
    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3>;
}
