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
        /// Positions the model has.
        max_positions: usize,
    },
}

impl Input {
    /// What the network of this architecture in a checkpoint takes in.
    fn of(arch: Arch, checkpoint: &Checkpoint) -> Result<Self> {
        let folder = &Folder::of(checkpoint);
        Ok(match arch {
            Arch::DigitsCnn => Self::Images(ImageInput::of_digits(&DigitsCnnConfig::read(folder)?)),
            Arch::Bert => {
                let config = BertConfig::read(folder, checkpoint)?;
                let positions = config.max_position_embeddings;
                text_input(folder, config.vocab_size, positions, positions)?
            }
            Arch::Llama => {
                let config = LlamaConfig::read(folder, checkpoint)?;
                text_input(folder, config.vocab_size, config.max_positions(), WINDOW)?
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
        if let Input::Text { tokenizer: Some(tokenizer), max_positions, .. } = &mut self.input {
            if max_length > *max_positions {
                let message = format!("max_length is {max_length}, and the model has {max_positions} positions");
                return Err(Error::config(message));
            }
            tokenizer.set_max_length(max_length)?;
        }
        Ok(())
    }
}

fn text_input(folder: &Folder, vocab_size: usize, max_positions: usize, usual: usize) -> Result<Input> {
    let max_length = text::max_seq_length(folder)?.unwrap_or(usual).min(max_positions);
    let mut tokenizer = TextTokenizer::read(folder, vocab_size, max_length)?;
    if let Some(tokenizer) = &mut tokenizer {
        tokenizer.set_max_length(max_length).map_err(|error| error.at(folder.0.path().display()))?;
    }
    Ok(Input::Text {
        directory: folder.0.path().to_path_buf(),
        tokenizer,
        pooling: Pooling::read(folder)?,
        max_positions,
    })
}
