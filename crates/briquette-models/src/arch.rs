//! Which architectures can be run, a row each, and which of them a checkpoint is of.

use crate::architecture::{Architecture, Blocks, Decoder};
use crate::config::Folder;
use crate::low_rank::make_room;
use crate::student_config::Smaller;
use crate::{Bert, DigitsCnn, Input, Llama, ModelTask, ResNet};
use crate::{bert, digits_cnn, llama, resnet};
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_nn::NameMap;
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An architecture that can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arch {
    /// A small convolutional network for 8x8 digits.
    DigitsCnn,
    /// torchvision's ResNet-18.
    #[serde(rename = "resnet18")]
    ResNet18,
    /// torchvision's ResNet-34.
    #[serde(rename = "resnet34")]
    ResNet34,
    /// torchvision's ResNet-50.
    #[serde(rename = "resnet50")]
    ResNet50,
    /// torchvision's ResNet-101.
    #[serde(rename = "resnet101")]
    ResNet101,
    /// torchvision's ResNet-152.
    #[serde(rename = "resnet152")]
    ResNet152,
    /// BERT and its like, as an encoder of sentences.
    Bert,
    /// Llama and its like, as a decoder.
    Llama,
}

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

/// What there is to know of an architecture.
struct ArchRow {
    arch: Arch,
    /// Its name in recipes.
    name: &'static str,
    task: ModelTask,
    /// What config.json calls it; its name is known there too.
    model_types: &'static [&'static str],
    /// Whether the names of a checkpoint's tensors are those of its network.
    has_names: fn(&Checkpoint) -> bool,
    /// Its network for a checkpoint, before it is filled; and how its paths relate to the names there.
    blank: fn(&Checkpoint, &Device) -> Result<(Network, NameMap)>,
    /// What its network for a checkpoint takes in.
    input: fn(&Checkpoint) -> Result<Input>,
}

/// Every architecture, in the order in which they are tried.
const ROWS: &[ArchRow] = &[
    ArchRow {
        arch: Arch::Bert,
        name: "bert",
        task: ModelTask::Encoder,
        model_types: bert::MODEL_TYPES,
        has_names: bert::has_names,
        blank: |checkpoint, device| roomy(bert::blank(checkpoint, device)?, Network::Bert, checkpoint),
        input: bert::input,
    },
    ArchRow {
        arch: Arch::Llama,
        name: "llama",
        task: ModelTask::Decoder,
        model_types: llama::MODEL_TYPES,
        has_names: llama::has_names,
        blank: |checkpoint, device| roomy(llama::blank(checkpoint, device)?, Network::Llama, checkpoint),
        input: llama::input,
    },
    resnet::<18>(Arch::ResNet18, "resnet18"),
    resnet::<34>(Arch::ResNet34, "resnet34"),
    resnet::<50>(Arch::ResNet50, "resnet50"),
    resnet::<101>(Arch::ResNet101, "resnet101"),
    resnet::<152>(Arch::ResNet152, "resnet152"),
    ArchRow {
        arch: Arch::DigitsCnn,
        name: "digits-cnn",
        task: ModelTask::Classifier,
        model_types: digits_cnn::MODEL_TYPES,
        has_names: digits_cnn::has_names,
        blank: |checkpoint, device| roomy(digits_cnn::blank(checkpoint, device)?, Network::DigitsCnn, checkpoint),
        input: digits_cnn::input,
    },
];

const fn resnet<const DEPTH: usize>(arch: Arch, name: &'static str) -> ArchRow {
    ArchRow {
        arch,
        name,
        task: ModelTask::Classifier,
        model_types: &[],
        has_names: resnet::has_names::<DEPTH>,
        blank: |checkpoint, device| roomy(resnet::blank::<DEPTH>(checkpoint, device)?, Network::ResNet, checkpoint),
        input: resnet::input::<DEPTH>,
    }
}

/// A blank network with room for two factors where the checkpoint has those.
fn roomy<N: Architecture>(
    (mut network, names): (N, NameMap),
    variant: fn(N) -> Network,
    checkpoint: &Checkpoint,
) -> Result<(Network, NameMap)> {
    make_room(&mut network, checkpoint, &names);
    Ok((variant(network), names))
}

impl Arch {
    /// Every architecture, for help texts and tests.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = ROWS.iter().map(|row| row.arch).collect();
        all.sort();
        all
    }

    fn row(self) -> &'static ArchRow {
        ROWS.iter().find(|row| row.arch == self).expect("every architecture has a row")
    }

    /// Its name in recipes.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What it does.
    pub fn task(self) -> ModelTask {
        self.row().task
    }

    /// What its network in a checkpoint takes in.
    pub fn input(self, checkpoint: &Checkpoint) -> Result<Input> {
        (self.row().input)(checkpoint)
    }

    /// The architecture of a checkpoint: by `model_type` of its config.json, else by the names of its tensors.
    ///
    /// A `model_type` that is not known is not overruled by names: RoBERTa's are BERT's, and its positions are not.
    ///
    /// # Errors
    /// Config where neither tells; the message lists the names to choose from.
    pub fn detect(checkpoint: &Checkpoint) -> Result<Self> {
        let folder = Folder::of(checkpoint);
        let model_type = folder.model_type()?;
        let found = match &model_type {
            Some(name) => of_model_type(name),
            None => Self::by_names(checkpoint),
        };
        found.ok_or_else(|| {
            let message = match model_type {
                Some(name) => {
                    let known = ROWS.iter().flat_map(|row| row.model_types).copied().collect::<Vec<_>>().join(", ");
                    format!("config.json says model_type {name:?}, which cannot be run; expected one of {known}")
                }
                None => format!("its tensors' names fit no architecture; if it is one of {}, name it as arch", names()),
            };
            Error::config(message).at(checkpoint.path().display())
        })
    }

    /// The architecture that the names of tensors point to.
    pub fn by_names(checkpoint: &Checkpoint) -> Option<Self> {
        ROWS.iter().find(|row| (row.has_names)(checkpoint)).map(|row| row.arch)
    }
}

impl Network {
    /// The network that a checkpoint is of, before it is filled, with room for two factors where linear layers are those; and how
    /// its paths relate to the names of the checkpoint. It takes no memory for weights.
    pub fn blank(arch: Arch, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        (arch.row().blank)(checkpoint, device)
    }

    fn as_architecture(&self) -> &dyn Architecture {
        match self {
            Self::DigitsCnn(network) => network,
            Self::ResNet(network) => network,
            Self::Bert(network) => network,
            Self::Llama(network) => network,
        }
    }

    /// A smaller network, whose config.json `config` becomes; none where there is no smaller kind.
    pub(crate) fn smaller(&self, config: &mut Map<String, Value>, how: &Smaller, at: &Device) -> Result<Option<Self>> {
        Ok(match self {
            Self::DigitsCnn(network) => network.smaller(config, how, at)?.map(Self::DigitsCnn),
            Self::ResNet(network) => network.smaller(config, how, at)?.map(Self::ResNet),
            Self::Bert(network) => network.smaller(config, how, at)?.map(Self::Bert),
            Self::Llama(network) => network.smaller(config, how, at)?.map(Self::Llama),
        })
    }

    /// Images `[batch, channels, height, width]` to class scores `[batch, classes]`.
    ///
    /// # Panics
    /// If it is no classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.as_architecture().classify(images)
    }

    /// The network as blocks, where it is a row of such.
    pub fn as_blocks(&self) -> Option<&dyn Blocks> {
        self.as_architecture().as_blocks()
    }

    /// The device that its parameters are on.
    pub fn device(&self) -> Device {
        self.devices().into_iter().next().unwrap_or_default()
    }

    /// Layers that a student can have some of.
    pub fn n_layers(&self) -> Option<usize> {
        self.as_architecture().n_choosable_layers()
    }

    /// Tokens and their padding, `[batch, length]`, to hidden states `[batch, length, width]`.
    ///
    /// # Panics
    /// If it is no encoder.
    pub fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.as_architecture().encode(tokens, padding)
    }

    /// Tokens `[batch, length]` to scores of the next `[batch, length, vocabulary]`.
    ///
    /// # Panics
    /// If it is no decoder.
    pub fn decode(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let decoder = self.as_decoder();
        decoder.scores(decoder.last_state(tokens))
    }

    /// The decoder it is.
    ///
    /// # Panics
    /// If it is none.
    pub fn as_decoder(&self) -> &dyn Decoder {
        self.as_architecture().as_decoder()
    }
}

/// Every name, as a list for messages.
fn names() -> String {
    Arch::all().into_iter().map(Arch::name).collect::<Vec<_>>().join(", ")
}

/// The architecture that a config.json says.
fn of_model_type(name: &str) -> Option<Arch> {
    ROWS.iter().find(|row| row.name == name || row.model_types.contains(&name)).map(|row| row.arch)
}

impl std::fmt::Display for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Arch {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::all().into_iter().find(|arch| arch.name() == name);
        found.ok_or_else(|| Error::config(format!("found arch {name:?}, expected one of {}", names())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_round_trips_as_text_and_json() {
        for arch in Arch::all() {
            assert_eq!(arch.name().parse::<Arch>().unwrap(), arch);
            assert_eq!(serde_json::to_string(&arch).unwrap(), format!("\"{arch}\""));
        }
        assert!("resnet51".parse::<Arch>().unwrap_err().message.contains("resnet50"));
    }
}
