//! Checkpoints of BERT: tensor names, config.json, input, and smaller networks.

use super::{Bert, BertConfig};
use crate::Input;
use crate::architecture::{Architecture, Blocks};
use crate::block_state::BlockState;
use crate::config::{Folder, check_layers};
use crate::fresh::{padding_of, range_of};
use crate::graph_net::{AnyTensor, RunInputs};
use crate::input::Longest;
use crate::student_config::{Smaller, keep_layers, with_sizes};
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::NameMap;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde_json::{Map, Value};

/// Values of `model_type` in config.json.
pub(crate) const MODEL_TYPES: &[&str] = &["bert"];

/// Tensors that an encoder ignores: heads of other tasks, and buffers.
const EXTRAS: [&str; 8] = [
    "**.position_ids",
    "**.token_type_ids",
    "pooler.**",
    "bert.pooler.**",
    "cls.**",
    "classifier.**",
    "qa_outputs.**",
    "bert.embeddings.position_ids",
];

/// Returns whether the tensor names are BERT's.
pub(crate) fn has_names(checkpoint: &Checkpoint) -> bool {
    has(checkpoint, |name| name.ends_with("encoder.layer.0.attention.self.query.weight"))
}

/// Creates the unfilled network of a checkpoint, and its name map.
pub(crate) fn blank(checkpoint: &Checkpoint, device: &Device) -> Result<(Bert, NameMap)> {
    Ok((read(checkpoint)?.init(device), names(checkpoint)?))
}

/// Returns the input of a checkpoint's network.
pub(crate) fn input(checkpoint: &Checkpoint) -> Result<Input> {
    let BertConfig { vocab_size, max_position_embeddings: positions, .. } = read(checkpoint)?;
    let longest = Longest { max_positions: positions, window: None };
    Input::text(&Folder::of(checkpoint), vocab_size, longest, positions)
}

fn read(checkpoint: &Checkpoint) -> Result<BertConfig> {
    let folder = Folder::of(checkpoint);
    folder.check_model_type(MODEL_TYPES)?;
    let config: BertConfig = folder.config()?;
    let sound = config.validate().and_then(|()| check_layers(config.num_hidden_layers, checkpoint));
    sound.map_err(|message| folder.config_error(message))?;
    Ok(config)
}

/// Maps to Hugging Face's names. `self_` is `self`, a Rust keyword. Files may use the prefix `bert.`
/// and TensorFlow's norms.
fn names(checkpoint: &Checkpoint) -> Result<NameMap> {
    let names = NameMap::torch().rename("^Bert", "");
    let mut names = names.rename("self_", "self").rename("layer_norm", "LayerNorm");
    if has(checkpoint, |name| name.ends_with("LayerNorm.gamma")) {
        // TensorFlow's names, as in bert-base-uncased.
        names = names.rename("LayerNorm.weight", "LayerNorm.gamma").rename("LayerNorm.bias", "LayerNorm.beta");
    }
    if has(checkpoint, |name| name.starts_with("bert.encoder.")) {
        names = names.rename("^", "bert");
    }
    EXTRAS.iter().try_fold(names, |names, extra| names.ignore(extra))
}

fn has(checkpoint: &Checkpoint, is_it: fn(&str) -> bool) -> bool {
    checkpoint.tensors().iter().any(|info| is_it(&info.name))
}

impl Architecture for Bert {
    fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.forward(tokens, padding)
    }

    fn as_blocks(&self) -> Option<&dyn Blocks> {
        Some(self)
    }

    fn n_choosable_layers(&self) -> Option<usize> {
        Some(self.n_layers())
    }

    fn smaller(&self, config: &mut Map<String, Value>, how: &Smaller, device: &Device) -> Result<Option<Self>> {
        match how {
            Smaller::Layers(layers) => {
                keep_layers(config, layers, self.n_layers())?;
                Ok(Some(self.with_layers(layers)))
            }
            Smaller::Sizes(sizes) => {
                let sized = with_sizes(config, sizes, None::<BertConfig>, BertConfig::validate)?;
                let (initializer_range, padding) = (range_of(config)?, padding_of(config, sized.vocab_size, Some(0)));
                Ok(Some(BertConfig { initializer_range, padding, ..sized }.init(device)))
            }
        }
    }
}

impl Blocks for Bert {
    fn n_blocks(&self) -> usize {
        self.n_layers()
    }

    fn block_paths(&self, index: usize) -> Vec<String> {
        vec![format!("encoder.layer.{index}")]
    }

    fn enter(&self, inputs: &RunInputs) -> BlockState {
        self.embed(inputs.text().0).into()
    }

    fn block(&self, index: usize, state: BlockState, inputs: &RunInputs) -> BlockState {
        self.layer(index, state.hidden(), inputs.text().1).into()
    }

    fn leave(&self, state: BlockState) -> AnyTensor {
        state.hidden().into()
    }
}
