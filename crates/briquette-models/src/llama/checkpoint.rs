//! Checkpoints of Llama: tensor names, config.json, input, and smaller networks.

use super::{Llama, LlamaConfig};
use crate::Input;
use crate::architecture::{Architecture, Blocks, Decoder};
use crate::block_state::BlockState;
use crate::cache::KeyValues;
use crate::config::{Folder, check_layers, has_tensor};
use crate::fresh::{padding_of, range_of};
use crate::graph_net::{AnyTensor, RunInputs};
use crate::input::Longest;
use crate::student_config::{LAYER_TYPES, Smaller, keep_layers, with_sizes};
use briquette_core::{Error, Result};
use briquette_cpu::float::CacheType;
use briquette_formats::Checkpoint;
use briquette_nn::NameMap;
use burn::tensor::{Device, Int, Tensor};
use serde_json::{Map, Value};

/// Values of `model_type` in config.json. Mistral and Qwen2 are Llama's network with other sizes, windows and
/// biases.
pub(crate) const MODEL_TYPES: &[&str] = &["llama", "mistral", "qwen2"];

/// Buffers in older files.
const EXTRAS: [&str; 1] = ["**.rotary_emb.inv_freq"];

/// Default window of a decoder in tokens, as usual for perplexities.
const WINDOW: usize = 1024;

/// Returns whether the tensor names are Llama's.
pub(crate) fn has_names(checkpoint: &Checkpoint) -> bool {
    has_tensor(checkpoint, "model.layers.0.self_attn.q_proj.weight")
}

/// Creates the unfilled network of a checkpoint, and its name map.
pub(crate) fn blank(checkpoint: &Checkpoint, device: &Device) -> Result<(Llama, NameMap)> {
    let config = read(checkpoint)?;
    Ok((config.init(device), names(config.tie_word_embeddings)?))
}

/// Returns the input of a checkpoint's network.
pub(crate) fn input(checkpoint: &Checkpoint) -> Result<Input> {
    let config = read(checkpoint)?;
    let longest = Longest { max_positions: config.max_position_embeddings, window: config.window() };
    Input::text(&Folder::of(checkpoint), config.vocab_size, longest, WINDOW)
}

fn read(checkpoint: &Checkpoint) -> Result<LlamaConfig> {
    let folder = Folder::of(checkpoint);
    folder.check_model_type(MODEL_TYPES)?;
    let mut config: LlamaConfig = folder.config()?;
    let has = |name: &str| has_tensor(checkpoint, &format!("model.layers.0.{name}.bias"));
    config.qkv_bias = has("self_attn.q_proj");
    config.output_bias = has("self_attn.o_proj");
    config.mlp_bias = has("mlp.gate_proj");
    check_head(checkpoint, config.tie_word_embeddings)?;
    let sound = config.validate().and_then(|()| check_layers(config.num_hidden_layers, checkpoint));
    sound.map_err(|message| folder.config_error(message))?;
    Ok(config)
}

/// Refuses a Llama without a language-model head.
fn check_head(checkpoint: &Checkpoint, is_tied: bool) -> Result<()> {
    let has = |name: &str| has_tensor(checkpoint, name);
    let message = if has("layers.0.self_attn.q_proj.weight") {
        "it has no prefix model. and no lm_head.weight, like a LlamaModel without head"
    } else if has("lm_head.weight") || is_tied && !has("score.weight") {
        return Ok(());
    } else if has("score.weight") {
        "it has score.weight and no lm_head.weight, like a LlamaForSequenceClassification"
    } else {
        "it has no lm_head.weight, and config.json does not tie the head to the embedding (tie_word_embeddings)"
    };
    let message = format!("{message}; expected a language model; save it as LlamaForCausalLM");
    Err(Error::input(message).at(checkpoint.path().display()))
}

/// Maps to Hugging Face's names. A tied Llama may store its head as a copy of the embedding; loading ignores
/// it.
fn names(is_tied: bool) -> Result<NameMap> {
    let names = NameMap::torch().rename("^Llama", "");
    let names = EXTRAS.iter().try_fold(names, |names, extra| names.ignore(extra))?;
    if is_tied { names.ignore("lm_head.weight") } else { Ok(names) }
}

impl Architecture for Llama {
    fn as_decoder(&self) -> &dyn Decoder {
        self
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
                if sizes.contains_key("num_hidden_layers") {
                    // The list has an entry per layer of the teacher. Without it, transformers derives the same
                    // types from other keys.
                    config.remove(LAYER_TYPES);
                }
                let sized = with_sizes(config, sizes, None::<LlamaConfig>, LlamaConfig::validate)?;
                let (initializer_range, padding) = (range_of(config)?, padding_of(config, sized.vocab_size, None));
                Ok(Some(self.with_biases(LlamaConfig { initializer_range, padding, ..sized }).init(device)))
            }
        }
    }
}

impl Blocks for Llama {
    fn n_blocks(&self) -> usize {
        self.n_layers()
    }

    fn block_paths(&self, index: usize) -> Vec<String> {
        vec![format!("model.layers.{index}")]
    }

    fn enter(&self, inputs: &RunInputs) -> BlockState {
        self.embed(inputs.text().0).into()
    }

    fn block(&self, index: usize, state: BlockState, _inputs: &RunInputs) -> BlockState {
        self.layer(index, state.hidden()).into()
    }

    fn only_show(&self, index: usize, state: BlockState, _inputs: &RunInputs) {
        self.show_layer(index, state.hidden());
    }

    fn leave(&self, state: BlockState) -> AnyTensor {
        self.normed(state.hidden()).into()
    }

    fn exit_paths(&self) -> Vec<String> {
        ["model.norm", "lm_head"].map(str::to_string).to_vec()
    }

    fn exit_needs_entry(&self) -> bool {
        self.is_tied()
    }
}

impl Decoder for Llama {
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        Self::last_state(self, tokens)
    }

    fn scores(&self, last_state: Tensor<3>) -> Tensor<3> {
        Self::scores(self, last_state)
    }

    fn vocab_size(&self) -> usize {
        Self::vocab_size(self)
    }

    fn max_positions(&self) -> usize {
        self.max_positions
    }

    fn key_values(&self, kind: CacheType) -> KeyValues {
        Self::key_values(self, kind)
    }

    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3> {
        Self::next_state(self, tokens, caches)
    }
}
