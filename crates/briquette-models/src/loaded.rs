//! A model that can be run: its network, and what it needs to read its inputs.

use crate::Arch;
use crate::bert::{Bert, BertConfig};
use crate::config::Folder;
use crate::data::ImageInput;
use crate::digits_cnn::{DigitsCnn, DigitsCnnConfig};
use crate::layers::Linear;
use crate::llama::Llama;
use crate::llama_config::LlamaConfig;
use crate::low_rank::{Linears, make_room};
use crate::naming::{self, names_of};
use crate::resnet::{ResNet, ResNetConfig};
use crate::text::{self, Pooling, TextTokenizer};
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_nn::{NameMap, ToDType, held};
use burn::module::Module;
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};
use std::path::{Path, PathBuf};

/// Tokens a decoder sees at once, where nobody says otherwise: what perplexities are usually given for.
const WINDOW: usize = 1024;

/// A network of any architecture. In paths of its parameters the variant's name comes first.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Network {
    /// The digits network.
    DigitsCnn(DigitsCnn),
    /// A residual network.
    ResNet(ResNet),
    /// A BERT encoder.
    Bert(Bert),
    /// A Llama decoder.
    Llama(Llama),
}

impl Network {
    /// The network that a checkpoint is of, before it is filled, with room for two factors where linear layers are those; and how
    /// its paths relate to the names of the checkpoint. It takes no memory for weights.
    pub(crate) fn blank(arch: Arch, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        let folder = Folder::of(checkpoint);
        let mut is_tied = false;
        let mut network = match arch {
            Arch::DigitsCnn => Self::DigitsCnn(DigitsCnnConfig::read(&folder)?.init(device)),
            Arch::Bert => Self::Bert(BertConfig::read(&folder, checkpoint)?.init(device)),
            Arch::Llama => {
                let config = LlamaConfig::read(&folder, checkpoint)?;
                is_tied = config.tie_word_embeddings;
                Self::Llama(config.init(device))
            }
            _ => Self::ResNet(ResNetConfig::read(checkpoint, arch)?.init(device)),
        };
        let names = names_of(arch, checkpoint, is_tied)?;
        make_room(&mut network, checkpoint, &names);
        Ok((network, names))
    }

    /// Images `[batch, channels, height, width]` to class scores `[batch, classes]`.
    ///
    /// # Panics
    /// If it is no classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        match self {
            Self::DigitsCnn(network) => network.forward(images),
            Self::ResNet(network) => network.forward(images),
            Self::Bert(_) | Self::Llama(_) => panic!("not a classifier"),
        }
    }

    /// Layers that a student can have some of.
    pub fn n_layers(&self) -> Option<usize> {
        match self {
            Self::Bert(network) => Some(network.n_layers()),
            Self::Llama(network) => Some(network.n_layers()),
            Self::DigitsCnn(_) | Self::ResNet(_) => None,
        }
    }

    /// Tokens and their padding, `[batch, length]`, to hidden states `[batch, length, width]`.
    ///
    /// # Panics
    /// If it is no encoder.
    pub fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        match self {
            Self::Bert(network) => network.forward(tokens, padding),
            _ => panic!("not an encoder"),
        }
    }

    /// Tokens `[batch, length]` to scores of the next `[batch, length, vocabulary]`.
    ///
    /// # Panics
    /// If it is no decoder.
    pub fn decode(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.as_decoder().forward(tokens)
    }

    /// The decoder it is.
    ///
    /// # Panics
    /// If it is none.
    pub fn as_decoder(&self) -> &Llama {
        match self {
            Self::Llama(network) => network,
            _ => panic!("not a decoder"),
        }
    }
}

impl Linears for Network {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        match self {
            Self::DigitsCnn(network) => network.linears(),
            Self::ResNet(network) => network.linears(),
            Self::Bert(network) => network.linears(),
            Self::Llama(network) => network.linears(),
        }
    }
}

/// What a model takes in.
#[derive(Debug, Clone)]
pub enum Input {
    /// Images, prepared like this.
    Images(ImageInput),
    /// Text.
    Text {
        /// The model's directory.
        directory: PathBuf,
        /// The tokenizer, where the model's directory has one.
        tokenizer: Option<TextTokenizer>,
        /// How an encoder's hidden states become an embedding; unused by decoders.
        pooling: Pooling,
        /// The longest text that is run, in tokens.
        longest: Longest,
    },
}

/// The longest text that a model is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longest {
    /// Positions the model has.
    pub max_positions: usize,
    /// The sliding window of its attention, which is run as far as that reaches over the whole text.
    pub window: Option<usize>,
}

impl Longest {
    /// In tokens.
    pub fn n_tokens(&self) -> usize {
        self.window.map_or(self.max_positions, |window| window.min(self.max_positions))
    }

    /// Refuses a longer one.
    ///
    /// # Errors
    /// Config, with what limits it.
    fn check(&self, max_length: usize) -> Result<()> {
        let n = self.max_positions;
        let message = match self.window {
            _ if max_length <= self.n_tokens() => return Ok(()),
            Some(window) if max_length <= n => format!(
                "the model has {n} positions, but its attention slides over {window} tokens, and is run only where those are \
                 the whole text; take at most {window}"
            ),
            _ => format!("the model has {n} positions; take at most {}", self.n_tokens()),
        };
        Err(Error::config(format!("found {max_length}: {message}")).at("data.max_length (--max-length)"))
    }
}

impl Input {
    /// What the network of this architecture in a checkpoint takes in.
    fn of(arch: Arch, checkpoint: &Checkpoint) -> Result<Self> {
        let folder = &Folder::of(checkpoint);
        Ok(match arch {
            Arch::DigitsCnn => Self::Images(DigitsCnnConfig::read(folder)?.image_input()),
            Arch::Bert => {
                let config = BertConfig::read(folder, checkpoint)?;
                let positions = config.max_position_embeddings;
                text_input(folder, config.vocab_size, Longest { max_positions: positions, window: None }, positions)?
            }
            Arch::Llama => {
                let config = LlamaConfig::read(folder, checkpoint)?;
                let longest = Longest { max_positions: config.max_position_embeddings, window: config.window() };
                text_input(folder, config.vocab_size, longest, WINDOW)?
            }
            _ => Self::Images(ImageInput::of_imagenet(ResNetConfig::read(checkpoint, arch)?.in_channels)),
        })
    }
}

/// A model with its weights.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    /// Its architecture.
    pub arch: Arch,
    /// Its network, in the state it was loaded; `valid()` where it is on an autodiff device and only run.
    pub network: Network,
    /// What it takes in.
    pub input: Input,
    /// How the paths of its parameters relate to the names of the checkpoint it came from, for exporting it again.
    pub names: NameMap,
    /// What its network computes in, in between inputs and outputs in f32: see [`LoadedModel::computing_in`].
    pub compute: FloatDType,
}

impl LoadedModel {
    /// The same model computing in another type: its weights are cast, and so is what goes in and comes out.
    ///
    /// # Errors
    /// Config where weights are held as codes: on those, layers compute in f32.
    pub fn computing_in(self, compute: FloatDType) -> Result<Self> {
        let floats = ["f32", "f16", "bf16"];
        if let Some(kind) = held(&self.network).keys().find(|kind| !floats.contains(&kind.as_str())) {
            let message = format!("memory.dtype: weights are held as {kind}, which computes in f32; leave it at f32");
            return Err(Error::config(message));
        }
        Ok(Self { network: self.network.to_dtype(compute), compute, ..self })
    }

    /// Class scores of images, both in f32.
    ///
    /// # Panics
    /// If it is no classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.network.classify(images.cast(self.compute)).cast(FloatDType::F32)
    }

    /// The same model as it is run, not trained: off the autodiff device, with all that only trains switched off.
    #[must_use]
    pub fn for_running(&self) -> Self {
        Self { network: self.network.valid(), ..self.clone() }
    }

    /// Opens a file, an index or a directory and loads it on `device`. On the CPU, off autodiff, compressed
    /// weights stay codes where layers run on those; elsewhere they are decoded.
    ///
    /// # Errors
    /// Config where the architecture cannot be told; Input where files are damaged or do not fit it; Io.
    pub fn open(path: &Path, arch: Option<Arch>, device: &Device) -> Result<Self> {
        Self::load(&Checkpoint::open(path)?, arch, device)
    }

    /// As [`LoadedModel::open`], of an open checkpoint.
    ///
    /// # Errors
    /// As [`LoadedModel::open`].
    pub fn load(checkpoint: &Checkpoint, arch: Option<Arch>, device: &Device) -> Result<Self> {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = Network::blank(arch, checkpoint, device)?;
        let network = naming::load(network, arch, checkpoint, &names)?;
        let input = Input::of(arch, checkpoint)?;
        Ok(Self { arch, network, input, names, compute: FloatDType::F32 })
    }

    /// The tokenizer of a model that takes text.
    ///
    /// # Errors
    /// Input where its directory has none; Config where it takes images.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        match &self.input {
            Input::Text { tokenizer: Some(tokenizer), .. } => Ok(tokenizer),
            Input::Text { directory, .. } => {
                let path = directory.join("tokenizer.json");
                Err(Error::input("it is missing; put it beside the model's weights").at(path.display()))
            }
            Input::Images(_) => Err(Error::config(format!("{} takes images, found text", self.arch))),
        }
    }

    /// Cuts texts at `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config where the model has fewer positions or that leaves no room; as [`LoadedModel::tokenizer`] elsewhere.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.tokenizer()?;
        if let Input::Text { tokenizer: Some(tokenizer), longest, .. } = &mut self.input {
            longest.check(max_length)?;
            tokenizer.set_max_length(max_length)?;
        }
        Ok(())
    }
}

fn text_input(folder: &Folder, vocab_size: usize, longest: Longest, usual: usize) -> Result<Input> {
    let max_length = text::max_seq_length(folder)?.unwrap_or(usual).min(longest.n_tokens());
    let mut tokenizer = TextTokenizer::read(folder, vocab_size, max_length)?;
    if let Some(tokenizer) = &mut tokenizer {
        tokenizer.set_max_length(max_length).map_err(|error| error.at(folder.0.path().display()))?;
    }
    let directory = folder.0.path().to_path_buf();
    Ok(Input::Text { directory, tokenizer, pooling: Pooling::read(folder)?, longest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_limits_a_text_is_called_what_it_is() {
        let (plain, sliding) = (None, Some(8));
        let said = |window, n| Longest { max_positions: 32, window }.check(n).unwrap_err().to_string();
        assert!(said(plain, 33).contains("found 33: the model has 32 positions; take at most 32"));
        assert!(
            said(sliding, 9).contains("has 32 positions, but its attention slides over 8 tokens"),
            "{}",
            said(sliding, 9)
        );
        assert!(said(sliding, 33).contains("the model has 32 positions; take at most 8"));
        assert!(Longest { max_positions: 32, window: sliding }.check(8).is_ok());
        assert_eq!(Longest { max_positions: 4, window: sliding }.n_tokens(), 4);
    }
}
