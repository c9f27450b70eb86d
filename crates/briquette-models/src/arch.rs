//! Which architecture a checkpoint is of.

use crate::config::Folder;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use serde::{Deserialize, Serialize};

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

/// What an architecture does, and so how it is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Images in, class scores out.
    Classifier,
    /// Sentences in, embeddings out.
    Encoder,
    /// Text in, scores of the next token out.
    Decoder,
}

impl Arch {
    /// Every architecture, for help texts and tests.
    pub const ALL: [Self; 8] = [
        Self::DigitsCnn,
        Self::ResNet18,
        Self::ResNet34,
        Self::ResNet50,
        Self::ResNet101,
        Self::ResNet152,
        Self::Bert,
        Self::Llama,
    ];

    /// Its name in recipes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DigitsCnn => "digits-cnn",
            Self::ResNet18 => "resnet18",
            Self::ResNet34 => "resnet34",
            Self::ResNet50 => "resnet50",
            Self::ResNet101 => "resnet101",
            Self::ResNet152 => "resnet152",
            Self::Bert => "bert",
            Self::Llama => "llama",
        }
    }

    /// What it does.
    pub const fn family(self) -> Family {
        match self {
            Self::Bert => Family::Encoder,
            Self::Llama => Family::Decoder,
            _ => Family::Classifier,
        }
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
                    let known = MODEL_TYPES.join(", ");
                    format!("config.json says model_type {name:?}, which cannot be run; expected one of {known}")
                }
                None => format!("its tensors' names fit no architecture; if it is one of {}, name it as arch", names()),
            };
            Error::config(message).at(checkpoint.path().display())
        })
    }

    /// The architecture that the names of tensors point to.
    pub fn by_names(checkpoint: &Checkpoint) -> Option<Self> {
        let tensors = checkpoint.tensors();
        let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        let ends = |name: &str| tensors.iter().any(|tensor| tensor.name.ends_with(name));
        if ends("encoder.layer.0.attention.self.query.weight") {
            Some(Self::Bert)
        } else if has("model.layers.0.self_attn.q_proj.weight") {
            Some(Self::Llama)
        } else if has("layer1.0.conv1.weight") {
            crate::resnet::depth_by_names(&|name| has(name))
        } else if has("conv2.weight") && has("bn2.running_mean") && has("fc2.weight") {
            Some(Self::DigitsCnn)
        } else {
            None
        }
    }
}

/// Every name, as a list for messages.
pub(crate) fn names() -> String {
    Arch::ALL.map(Arch::name).join(", ")
}

/// What config.json calls networks that can be run.
const MODEL_TYPES: [&str; 5] = ["bert", "llama", "mistral", "qwen2", "digits-cnn"];

/// Mistral and Qwen2 are Llama's network with other sizes, windows and biases.
pub(crate) fn of_model_type(name: &str) -> Option<Arch> {
    match name {
        "mistral" | "qwen2" => Some(Arch::Llama),
        _ => name.parse().ok(),
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
        let found = Self::ALL.into_iter().find(|arch| arch.name() == name);
        found.ok_or_else(|| Error::config(format!("found arch {name:?}, expected one of {}", names())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_in_text_and_in_json() {
        for arch in Arch::ALL {
            assert_eq!(arch.name().parse::<Arch>().unwrap(), arch);
            assert_eq!(serde_json::to_string(&arch).unwrap(), format!("\"{arch}\""));
        }
        assert!("resnet51".parse::<Arch>().unwrap_err().message.contains("resnet50"));
    }
}
