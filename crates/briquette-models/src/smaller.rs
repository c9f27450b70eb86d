//! Smaller networks of the same family: some of a model's layers, or other sizes.

use crate::config::Folder;
use crate::fresh::{draw, padding_of, range_of};
use crate::{Arch, BertConfig, DigitsCnnConfig, LlamaConfig, LoadedModel, Network};
use briquette_core::{DType, Error, Result};
use briquette_formats::{Checkpoint, TensorInfo};
use briquette_nn::{Layout, NameMap, Parameter, parameters};
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Sizes that what goes in and what comes out depend on: a student keeps its teacher's.
const SHARED: [&str; 7] = [
    "vocab_size",
    "num_labels",
    "image_size",
    "in_channels",
    "pixel_scale",
    "max_position_embeddings",
    "tie_word_embeddings",
];
/// The kind of each layer's attention, one after the other.
const LAYER_TYPES: &str = "layer_types";

/// How a network is smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Smaller {
    /// These of its layers, with their weights.
    Layers(Vec<usize>),
    /// Other values in its config.json, with random weights.
    Sizes(Map<String, Value>),
}

/// A smaller network than `model`, which was loaded from `checkpoint`, on `device`; and its config.json.
///
/// Random weights follow from the device's seed.
///
/// # Errors
/// Config where the architecture has no such layers or sizes, or would take or give something else than the model; Input
/// where its config.json is damaged.
pub fn smaller(
    model: &LoadedModel,
    checkpoint: &Checkpoint,
    how: &Smaller,
    device: &Device,
) -> Result<(LoadedModel, Vec<u8>)> {
    let mut config = Folder::of(checkpoint).read("config.json")?.unwrap_or_default();
    let network = shrunk(model.arch, &model.network, &mut config, how, device)?;
    draw(&network);
    let json = serde_json::to_vec_pretty(&config).map_err(|error| Error::bug(format!("config.json: {error}")))?;
    Ok((LoadedModel { network, ..model.clone() }, json))
}

/// A network without its weights: what a student will be, before there is one.
#[derive(Debug)]
pub struct Outline {
    arch: Arch,
    network: Network,
    names: NameMap,
    config: Map<String, Value>,
}

impl Outline {
    /// Of a checkpoint, by its headers.
    ///
    /// # Errors
    /// Config where the architecture cannot be told; Input where its config.json is damaged.
    pub fn of(checkpoint: &Checkpoint, arch: Option<Arch>) -> Result<Self> {
        let arch = arch.map_or_else(|| Arch::detect(checkpoint), Ok)?;
        let (network, names) = Network::blank(arch, checkpoint, &anywhere())?;
        let config = Folder::of(checkpoint).read("config.json")?.unwrap_or_default();
        Ok(Self { arch, network, names, config })
    }

    /// Its architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Layers that a student can have some of.
    pub fn n_layers(&self) -> Option<usize> {
        self.network.n_layers()
    }

    /// That of a smaller network than this: what [`smaller`] makes, and what it refuses.
    ///
    /// # Errors
    /// As [`smaller`].
    pub fn shrunk(mut self, how: &Smaller) -> Result<Self> {
        let network = shrunk(self.arch, &self.network, &mut self.config, how, &anywhere())?;
        Ok(Self { network, ..self })
    }

    /// The tensors that its checkpoint has, once it is trained.
    ///
    /// # Errors
    /// Config where a size is beyond all bounds.
    pub fn tensors(&self) -> Result<Vec<TensorInfo>> {
        let one = |parameter: Parameter| {
            let mut shape = parameter.shape.0.clone();
            if parameter.is_linear_weight() && self.names.layout() == Layout::Torch {
                shape.reverse();
            }
            let name = self.names.file_name(&parameter);
            TensorInfo::checked(name, DType::F32, shape).map_err(|error| Error::config(error.message).at("student"))
        };
        parameters(&self.network).into_iter().map(one).collect()
    }
}

/// Where a network is that has no weights.
fn anywhere() -> Device {
    crate::device("cpu").unwrap_or_default()
}

/// A smaller network than `network`, whose `config` becomes its own. Its weights are drawn when they are first looked at.
fn shrunk(
    arch: Arch,
    network: &Network,
    config: &mut Map<String, Value>,
    how: &Smaller,
    device: &Device,
) -> Result<Network> {
    Ok(match (how, network) {
        (Smaller::Layers(layers), Network::Bert(bert)) => {
            keep_layers(config, layers, bert.n_layers())?;
            Network::Bert(bert.with_layers(layers))
        }
        (Smaller::Layers(layers), Network::Llama(llama)) => {
            keep_layers(config, layers, llama.n_layers())?;
            Network::Llama(llama.with_layers(layers))
        }
        (Smaller::Sizes(sizes), Network::Llama(llama)) => {
            if sizes.contains_key("num_hidden_layers") {
                // It has one entry a layer, and is the same without.
                config.remove(LAYER_TYPES);
            }
            let sized = with_sizes(config, sizes, None::<LlamaConfig>, LlamaConfig::validate)?;
            let (initializer_range, padding) = (range_of(config)?, padding_of(config, sized.vocab_size, None));
            Network::Llama(llama.with_biases(LlamaConfig { initializer_range, padding, ..sized }).init(device))
        }
        (Smaller::Sizes(sizes), Network::Bert(_)) => {
            let sized = with_sizes(config, sizes, None::<BertConfig>, BertConfig::validate)?;
            let (initializer_range, padding) = (range_of(config)?, padding_of(config, sized.vocab_size, Some(0)));
            Network::Bert(BertConfig { initializer_range, padding, ..sized }.init(device))
        }
        (Smaller::Sizes(sizes), Network::DigitsCnn(_)) => {
            let usual = Some(DigitsCnnConfig::default());
            let sized = with_sizes(config, sizes, usual, DigitsCnnConfig::validate)?;
            Network::DigitsCnn(sized.init(device))
        }
        _ => {
            let message = format!("{arch} has no smaller kind here; expected \"self\", or another model");
            return Err(Error::config(message).at("student"));
        }
    })
}

/// `config` of these of its layers, where there are `n` of them.
fn keep_layers(config: &mut Map<String, Value>, layers: &[usize], n: usize) -> Result<()> {
    if let Some(layer) = layers.iter().find(|&&layer| layer >= n) {
        let message = format!("found layer {layer}, expected 0 to {}", n.saturating_sub(1));
        return Err(Error::config(message).at("layers"));
    }
    config.insert("num_hidden_layers".into(), layers.len().into());
    if let Some(Value::Array(types)) = config.get_mut(LAYER_TYPES) {
        *types = layers.iter().filter_map(|&layer| types.get(layer).cloned()).collect();
    }
    Ok(())
}

/// `config` with other sizes put in, and what it says then.
fn with_sizes<C: Serialize + DeserializeOwned>(
    config: &mut Map<String, Value>,
    sizes: &Map<String, Value>,
    usual: Option<C>,
    check: impl Fn(&C) -> Result<(), String>,
) -> Result<C> {
    let bad = |message: String| Error::config(message).at("student");
    if let Some(Value::Object(usual)) = usual.and_then(|usual| serde_json::to_value(usual).ok()) {
        for (key, value) in usual {
            config.entry(key).or_insert(value);
        }
    }
    for (key, value) in sizes {
        let Some(teacher) = config.get(key) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
            return Err(bad(format!("unknown size {key:?}, expected one of {}", known.join(", "))));
        };
        if SHARED.contains(&key.as_str()) && teacher != value {
            let message = format!("{key}: the student has {value} and the teacher {teacher}; they must be the same");
            return Err(bad(message));
        }
        config.insert(key.clone(), value.clone());
    }
    let found: C = serde_json::from_value(Value::Object(config.clone())).map_err(|error| bad(error.to_string()))?;
    check(&found).map_err(bad)?;
    Ok(found)
}
