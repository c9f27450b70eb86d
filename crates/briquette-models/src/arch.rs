//! The table of architectures, and detection of a checkpoint's architecture.

use crate::architecture::{Architecture, Blocks, Decoder};
use crate::bert::BertTrace;
use crate::config::Folder;
use crate::low_rank::make_room;
use crate::student_config::Smaller;
use crate::{Bert, DigitsCnn, GraphNet, Input, Llama, ModelTask, ResNet};
use crate::{bert, digits_cnn, graph_net, llama, resnet};
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::{FAMILIES, Family, Headers};
use briquette_nn::NameMap;
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// An architecture that Briquette can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// A small convolutional network for 8x8 digits.
    DigitsCnn,
    /// torchvision's ResNet-18.
    ResNet18,
    /// torchvision's ResNet-34.
    ResNet34,
    /// torchvision's ResNet-50.
    ResNet50,
    /// torchvision's ResNet-101.
    ResNet101,
    /// torchvision's ResNet-152.
    ResNet152,
    /// The BERT family, as sentence encoders.
    Bert,
    /// The Llama family, as decoders.
    Llama,
    /// A network of `briquette-graph`: the place of its family in [`FAMILIES`], and of its `model_type` in the family.
    Family(usize, usize),
}

/// A network of any architecture. Paths of its parameters begin with the name of the variant.
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
    /// A network of any family that has a graph.
    Graph(GraphNet),
}

/// Table entry of an architecture.
struct ArchRow {
    arch: Arch,
    /// Name in recipes.
    name: &'static str,
    task: ModelTask,
    /// Values of `model_type` in config.json; `name` is accepted too.
    model_types: &'static [&'static str],
    /// Returns whether a checkpoint has the tensor names of this network.
    has_names: fn(&Checkpoint) -> bool,
    /// Creates the unfilled network of a checkpoint, and its name map.
    blank: fn(&Checkpoint, &Device) -> Result<(Network, NameMap)>,
    /// Returns the input of a checkpoint's network.
    input: fn(&Checkpoint) -> Result<Input>,
}

/// All architectures, in the order of detection.
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

/// Converts the linear layers that a checkpoint stores as two factors to low rank.
fn roomy<N: Architecture>(
    (mut network, names): (N, NameMap),
    variant: fn(N) -> Network,
    checkpoint: &Checkpoint,
) -> Result<(Network, NameMap)> {
    make_room(&mut network, checkpoint, &names);
    Ok((variant(network), names))
}

impl Arch {
    /// Returns all architectures, for help texts and tests.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = ROWS.iter().map(|row| row.arch).chain(families().map(|(arch, _)| arch)).collect();
        all.sort();
        all
    }

    /// Returns the row of an architecture, or the family of a network that interprets its graph.
    fn row(self) -> std::result::Result<&'static ArchRow, &'static Family> {
        match self {
            Self::Family(place, _) => Err(&FAMILIES[place]),
            _ => Ok(ROWS.iter().find(|row| row.arch == self).expect("every architecture has a row")),
        }
    }

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match (self, self.row()) {
            (Self::Family(_, of), Err(family)) => family.model_types.get(of).copied().unwrap_or(family.name),
            (_, row) => row.map_or_else(|family| family.name, |row| row.name),
        }
    }

    /// Returns the task of the architecture.
    pub fn task(self) -> ModelTask {
        self.row().map_or_else(|family| family.task, |row| row.task)
    }

    /// Returns the input of a checkpoint's network.
    pub fn input(self, checkpoint: &Checkpoint) -> Result<Input> {
        self.row().map_or_else(|_| graph_net::input(checkpoint), |row| (row.input)(checkpoint))
    }

    /// Detects the architecture of a checkpoint by `model_type` in config.json, or else by tensor names.
    ///
    /// An unknown `model_type` is an error even if the names match: RoBERTa has BERT's names, but other
    /// positions.
    ///
    /// # Errors
    /// Config: the architecture is unknown; the message lists the known names.
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
                    let known = ROWS.iter().flat_map(|row| row.model_types);
                    let known = known.copied().chain(families().map(|(arch, _)| arch.name()));
                    let known = known.collect::<Vec<_>>().join(", ");
                    format!("config.json has model_type {name:?}, which cannot be run; expected one of {known}")
                }
                None => format!("its tensor names match no architecture; if it is one of {}, set arch", names()),
            };
            Error::config(message).at(checkpoint.path().display())
        })
    }

    /// Detects the architecture by tensor names only.
    pub fn by_names(checkpoint: &Checkpoint) -> Option<Self> {
        let of_rows = ROWS.iter().find(|row| (row.has_names)(checkpoint)).map(|row| row.arch);
        let headers = Headers::new(checkpoint.tensors(), checkpoint.layout());
        of_rows.or_else(|| families().find(|(_, family)| family.has_names(&headers)).map(|(arch, _)| arch))
    }
}

impl Network {
    /// Creates the unfilled network of a checkpoint and its name map.
    ///
    /// Linear layers that the checkpoint stores as two factors have low rank. Weights take no memory yet.
    pub fn blank(arch: Arch, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        match arch.row() {
            Ok(row) => (row.blank)(checkpoint, device),
            Err(_) => {
                let (network, names) = GraphNet::blank(checkpoint, device)?;
                network.check_head(arch.task()).map_err(|error| error.at(shown_path(checkpoint.path())))?;
                roomy((network, names), Network::Graph, checkpoint)
            }
        }
    }

    fn as_architecture(&self) -> &dyn Architecture {
        match self {
            Self::DigitsCnn(network) => network,
            Self::ResNet(network) => network,
            Self::Bert(network) => network,
            Self::Llama(network) => network,
            Self::Graph(network) => network,
        }
    }

    /// Creates a smaller network and updates its config.json; `None` if the architecture does not support it.
    pub(crate) fn smaller(&self, config: &mut Map<String, Value>, how: &Smaller, at: &Device) -> Result<Option<Self>> {
        Ok(match self {
            Self::DigitsCnn(network) => network.smaller(config, how, at)?.map(Self::DigitsCnn),
            Self::ResNet(network) => network.smaller(config, how, at)?.map(Self::ResNet),
            Self::Bert(network) => network.smaller(config, how, at)?.map(Self::Bert),
            Self::Llama(network) => network.smaller(config, how, at)?.map(Self::Llama),
            Self::Graph(network) => network.smaller(config, how, at)?.map(Self::Graph),
        })
    }

    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    ///
    /// # Panics
    /// If the network is not a classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.as_architecture().classify(images)
    }

    /// Returns the network as a sequence of blocks, if it is one.
    pub fn as_blocks(&self) -> Option<&dyn Blocks> {
        self.as_architecture().as_blocks()
    }

    /// Returns the device of the parameters.
    pub fn device(&self) -> Device {
        self.devices().into_iter().next().unwrap_or_default()
    }

    /// Returns the number of layers that a student can choose from; `None` if layers cannot be chosen.
    pub fn n_layers(&self) -> Option<usize> {
        self.as_architecture().n_choosable_layers()
    }

    /// Maps tokens and padding `[batch, length]` to hidden states `[batch, length, width]`.
    ///
    /// # Panics
    /// If the network is not an encoder.
    pub fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.as_architecture().encode(tokens, padding)
    }

    /// Returns the hidden state after each block, and with `has_attention` also attention probabilities and values.
    ///
    /// # Panics
    /// If the network does not take text.
    pub fn trace(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>, has_attention: bool) -> BertTrace {
        match self {
            Self::Bert(bert) => bert.trace(tokens, padding, has_attention),
            Self::Llama(llama) => {
                let mut hidden = llama.hidden_states(tokens);
                BertTrace { hidden: hidden.split_off(1), ..BertTrace::default() }
            }
            Self::Graph(network) => network.trace(tokens, padding, has_attention),
            Self::DigitsCnn(_) | Self::ResNet(_) => panic!("takes no text"),
        }
    }

    /// Maps tokens `[batch, length]` to logits of the next tokens `[batch, length, vocabulary]`.
    ///
    /// # Panics
    /// If the network is not a decoder.
    pub fn decode(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let decoder = self.as_decoder();
        decoder.scores(decoder.last_state(tokens))
    }

    /// Returns the network as a decoder.
    ///
    /// # Panics
    /// If the network is not a decoder.
    pub fn as_decoder(&self) -> &dyn Decoder {
        self.as_architecture().as_decoder()
    }
}

/// Returns all names, as a list for messages.
fn names() -> String {
    Arch::all().into_iter().map(Arch::name).collect::<Vec<_>>().join(", ")
}

/// Returns the architecture of a `model_type`.
fn of_model_type(name: &str) -> Option<Arch> {
    let of_rows = ROWS.iter().find(|row| row.name == name || row.model_types.contains(&name)).map(|row| row.arch);
    of_rows.or_else(|| families().map(|(arch, _)| arch).find(|arch| arch.name() == name))
}

/// Returns the networks that only a graph describes: they have no row here. Each `model_type` is an architecture.
fn families() -> impl Iterator<Item = (Arch, &'static Family)> {
    let kinds = |(place, family): (usize, &'static Family)| {
        (0..family.model_types.len().max(1)).map(move |kind| (Arch::Family(place, kind), family))
    };
    let has_row = |name: &str| ROWS.iter().any(|row| row.model_types.contains(&name));
    let all = FAMILIES.iter().enumerate().flat_map(kinds);
    all.filter(move |(arch, family)| !has_row(arch.name()) && family.name != "ResNet")
}

impl Serialize for Arch {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Arch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(|error: Error| serde::de::Error::custom(error.message))
    }
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
