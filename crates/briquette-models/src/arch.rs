//! Architectures: the families of `briquette-graph` by name, and detection of a checkpoint's architecture.

use crate::config::Folder;
use crate::graph_net::GraphHeaders;
use crate::{Input, ModelTask, graph_net};
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{Checkpoint, model_config};
use briquette_graph::{FAMILIES, Family, ONNX_NETWORKS, family_of};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An architecture that Briquette can run: a name of a family of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// The place of the family in [`FAMILIES`], followed by [`ONNX_NETWORKS`].
    family: usize,
    /// The place of the name in the family.
    name: usize,
}

impl Arch {
    /// Returns the architectures of all families, for help texts and tests.
    pub fn all() -> Vec<Self> {
        Self::with_onnx().filter(|arch| arch.family < FAMILIES.len()).collect()
    }

    /// Returns the architectures of all families and ONNX models.
    fn with_onnx() -> impl Iterator<Item = Self> {
        let names =
            |(family, known): (usize, &'static Family)| (0..known.names().len()).map(move |name| Self { family, name });
        FAMILIES.iter().chain(ONNX_NETWORKS).enumerate().flat_map(names)
    }

    /// Returns the architecture of ONNX models with a task.
    pub(crate) fn of_onnx(task: ModelTask) -> Option<Self> {
        Self::with_onnx().find(|arch| arch.is_onnx() && arch.task() == task)
    }

    /// Returns whether the graph of the network is in an ONNX file.
    pub fn is_onnx(self) -> bool {
        self.family >= FAMILIES.len()
    }

    /// Returns the family.
    pub fn family(self) -> &'static Family {
        FAMILIES.get(self.family).unwrap_or_else(|| &ONNX_NETWORKS[self.family - FAMILIES.len()])
    }

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        self.family().names()[self.name]
    }

    /// Returns the task of the architecture.
    pub fn task(self) -> ModelTask {
        self.family().task
    }

    /// Predicts the bytes that reading the input of a checkpoint's network takes at most.
    ///
    /// Reading a tokenizer.json takes 10 to 24 bytes for each byte of the file, by the kind of its model.
    pub fn input_bytes(checkpoint: &Checkpoint) -> u64 {
        let file = checkpoint.directory().join("tokenizer.json");
        25 * std::fs::metadata(file).map_or(0, |file| file.len())
    }

    /// Returns the input of a checkpoint's network.
    ///
    /// # Errors
    /// - Input: the checkpoint does not fit the family, or has a damaged tokenizer.
    /// - Config: the network takes neither text nor images.
    pub fn input(self, checkpoint: &Checkpoint) -> Result<Input> {
        match checkpoint.network_file() {
            Some(file) => graph_net::onnx_input(file.path(), checkpoint),
            None => graph_net::input(self.family(), checkpoint),
        }
    }

    /// Detects the architecture of a checkpoint by `model_type` in config.json, or else by tensor names.
    ///
    /// An unknown `model_type` is an error even if the names match: RoBERTa has BERT's names, but other
    /// positions. The architecture of an ONNX model follows from its inputs and outputs.
    ///
    /// # Errors
    /// Config: the architecture is unknown; the message lists the known names.
    pub fn detect(checkpoint: &Checkpoint) -> Result<Self> {
        if let Some(file) = checkpoint.network_file() {
            let task = graph_net::onnx_task(file.path(), &graph_net::config_beside(checkpoint)?)?;
            return Self::of_onnx(task).ok_or_else(|| Error::bug("a task without an ONNX network"));
        }
        let model_type = Folder::of(checkpoint).model_type()?;
        let found = match &model_type {
            Some(name) => {
                let family = family_of(&GraphHeaders::of(checkpoint).headers(), &graph_net::config_of(checkpoint)?);
                family.and_then(|family| Self::named(family.name_of_type(name)?))
            }
            None => Self::by_names(checkpoint),
        };
        found.ok_or_else(|| {
            let message = match model_type {
                Some(name) => {
                    format!("config.json has model_type {name:?}, which cannot be run; expected one of {}", names())
                }
                None => format!("its tensor names match no architecture; if it is one of {}, set arch", names()),
            };
            Error::config(message).at(checkpoint.path().display())
        })
    }

    /// Detects the architecture by tensor names only.
    pub fn by_names(checkpoint: &Checkpoint) -> Option<Self> {
        let tensors = GraphHeaders::of(checkpoint);
        let headers = tensors.headers();
        let family = FAMILIES.iter().find(|family| family.has_names(&headers))?;
        Self::named(family.name_of(&headers)?)
    }

    /// Refuses a config.json of another family, since equal names and shapes do not imply an equal network.
    ///
    /// # Errors
    /// Input: `model_type` is a name of another family, or a network of text has no config.json.
    pub(crate) fn check(self, checkpoint: &Checkpoint) -> Result<()> {
        let is_onnx_file = checkpoint.network_file().is_some();
        if is_onnx_file != self.is_onnx() {
            let found = if is_onnx_file { "an ONNX model" } else { "a model of another format" };
            let message = format!("arch is {self}, found {found}; leave arch out");
            return Err(Error::config(message).at(checkpoint.path().display()));
        }
        if is_onnx_file {
            return Ok(());
        }
        let folder = Folder::of(checkpoint);
        if self.task() != ModelTask::Classifier && model_config::read(checkpoint)?.is_none() {
            return Err(folder.config_error(match folder.read_whole(model_config::FILE_NAME)? {
                Some(_) => format!(
                    "it is read only with its directory; give {} instead of the weight file",
                    shown_path(folder.0.path())
                ),
                None => {
                    "it is missing, and it has settings that the weights do not have; put it next to the weights".into()
                }
            }));
        }
        match folder.model_type()? {
            Some(found) if self.family().name_of_type(&found).is_none() => {
                let message = format!("model_type is {found:?}, which is not a type of {self}");
                Err(folder.config_error(format!("{message}; {}", way_out(Self::named(&found)))))
            }
            _ => match Self::by_names(checkpoint) {
                Some(other) if other.family == self.family && self.family().is_told_by_tensors() && other != self => {
                    let message = format!("its tensors are not those of {self}; {}", way_out(Some(other)));
                    Err(Error::input(message).at(checkpoint.path().display()))
                }
                _ => Ok(()),
            },
        }
    }

    /// Returns the architecture of this name.
    fn named(name: &str) -> Option<Self> {
        Self::with_onnx().find(|arch| arch.name() == name)
    }
}

/// Returns what to do if another architecture was meant.
fn way_out(other: Option<Arch>) -> String {
    other.map_or_else(|| "choose another arch".into(), |other| format!("set arch = \"{other}\""))
}

/// Returns all names, as a list for messages.
fn names() -> String {
    Arch::all().into_iter().map(Arch::name).collect::<Vec<_>>().join(", ")
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
        Self::named(name).ok_or_else(|| Error::config(format!("found arch {name:?}, expected one of {}", names())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_round_trips_as_text_and_json() {
        let all = Arch::all();
        for arch in &all {
            assert_eq!(arch.name().parse::<Arch>().unwrap(), *arch);
            assert_eq!(serde_json::to_string(arch).unwrap(), format!("\"{arch}\""));
        }
        for name in ["bert", "llama", "mistral", "resnet18", "resnet152", "digits-cnn", "VGG"] {
            assert!(all.iter().any(|arch| arch.name() == name), "{name}");
        }
        assert!("resnet51".parse::<Arch>().unwrap_err().message.contains("resnet50"));
    }
}
