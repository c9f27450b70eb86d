//! What the network of an architecture has to do: a new one implements this in its own file, and has a row in `arch.rs`.

use crate::cache::KeyValues;
use crate::low_rank::Linears;
use crate::student_config::Smaller;
use briquette_core::Result;
use briquette_cpu::float::CacheType;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde_json::{Map, Value};

/// A network, as those see it who do not know which it is. What other tasks than its own need is left out.
pub(crate) trait Architecture: Linears {
    /// Images `[batch, channels, height, width]` to class scores `[batch, classes]`.
    fn classify(&self, _images: Tensor<4>) -> Tensor<2> {
        panic!("not a classifier")
    }

    /// Tokens and their padding, `[batch, length]`, to hidden states `[batch, length, width]`.
    fn encode(&self, _tokens: Tensor<2, Int>, _padding: Tensor<2, Bool>) -> Tensor<3> {
        panic!("not an encoder")
    }

    /// The decoder it is.
    fn as_decoder(&self) -> &dyn Decoder {
        panic!("not a decoder")
    }

    /// The network as blocks, where it is a row of such.
    fn as_blocks(&self) -> Option<&dyn Blocks> {
        None
    }

    /// Layers that a student can have some of.
    fn n_choosable_layers(&self) -> Option<usize> {
        None
    }

    /// A smaller network, whose config.json `config` becomes; none where there is no smaller kind. Its weights are drawn when
    /// they are first looked at.
    fn smaller(&self, _config: &mut Map<String, Value>, _how: &Smaller, _device: &Device) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        Ok(None)
    }
}

/// A network whose blocks can run one after another.
pub trait Blocks {
    /// How many there are.
    fn n_blocks(&self) -> usize;

    /// The path of a block: `model.layers.3`.
    fn block_path(&self, index: usize) -> String;

    /// Tokens `[batch, length]` to what the first block takes, `[batch, length, width]`.
    fn enter(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// What a block makes of a state; `padding` is true where a token is none.
    fn block(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3>;

    /// Shows the layers of a block their inputs; what the last of them gives need not be found.
    fn only_show(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) {
        drop(self.block(index, state, padding));
    }

    /// The last hidden state, of the state after the last block.
    fn leave(&self, state: Tensor<3>) -> Tensor<3>;

    /// The paths of what is needed after the last block only: a norm, a head.
    fn exit_paths(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether what comes before the first block is needed after the last one again: a table that is the head too.
    fn exit_needs_entry(&self) -> bool {
        false
    }
}

/// A network that tells the next token.
pub trait Decoder {
    /// Tokens `[batch, length]` to what the head takes, `[batch, length, width]`.
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// The head: `[batch, length, width]` to `[batch, length, vocabulary]`.
    fn scores(&self, last_state: Tensor<3>) -> Tensor<3>;

    /// Entries of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// The most tokens that a sequence can have.
    fn max_positions(&self) -> usize;

    /// Keys and values of a sequence of no tokens yet.
    fn key_values(&self, kind: CacheType) -> KeyValues;

    /// Tokens `[batch, n]`, which follow those of `caches`, to what the head takes, `[batch, n, width]`; their keys and values are added to
    /// the caches, one for each sequence.
    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3>;
}
