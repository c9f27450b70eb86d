//! Networks of other sizes, with random weights.

use super::GraphNet;
use super::layer_kinds::keep_layer_kinds;
use crate::fresh::Initial;
use crate::student_config::{Smaller, keep_layers, with_sizes};
use briquette_core::{DType, Error, Result};
use briquette_formats::TensorInfo;
use briquette_graph::fixed_values::FixedGrids;
use briquette_graph::resize::{is_size, resized};
use briquette_graph::{Config, Family, Headers, Task, TensorShapes, family_of};
use briquette_nn::NameMap;
use burn::tensor::Device;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

impl GraphNet {
    /// Creates a network with random weights and the sizes of a config.json, which has a `model_type`.
    ///
    /// ```
    /// use briquette_models::GraphNet;
    /// use burn::tensor::{Device, Tensor};
    ///
    /// let config = serde_json::json!({ "model_type": "resnet18", "num_labels": 10 });
    /// let device = Device::default();
    /// let network = GraphNet::random(config.as_object().expect("an object"), &device)?;
    /// assert_eq!(network.classify(Tensor::zeros([1, 3, 32, 32], &device)).dims(), [1, 10]);
    /// # Ok::<(), briquette_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Config: no family is made from sizes with this `model_type`, or a size is missing or invalid.
    pub fn random(config: &Map<String, Value>, device: &Device) -> Result<Self> {
        let (parsed, nothing) = (parsed(config)?, Headers::new(&[], None));
        let unknown = || Error::config("found no model_type of networks that are made from sizes");
        let family = family_of(&nothing, &parsed).ok_or_else(unknown)?;
        let tensors = family.tensors(&parsed, &nothing).map_err(as_student)?.ok_or_else(unknown)?;
        Self::of_shapes(family, config, tensors, device).map(|(network, _)| network)
    }

    /// Creates a smaller network and its name map, and updates `config`.
    ///
    /// New weights are initialized when they are first read.
    ///
    /// # Errors
    /// Config: there are no such layers or sizes, or config.json does not express the sizes of the network.
    pub(crate) fn smaller(
        &self,
        family: &'static Family,
        config: &mut Map<String, Value>,
        how: &Smaller,
        device: &Device,
    ) -> Result<(Self, NameMap)> {
        let sizes = match how {
            Smaller::Layers(layers) => {
                keep_layers(config, layers, self.graph().blocks.len())?;
                keep_layer_kinds(config, self.graph(), layers);
                return self.with_blocks(layers, device);
            }
            Smaller::Sizes(sizes) => sizes,
        };
        let own = self.tensors()?;
        let like = Headers::new(&own, None);
        let before = family.tensors(&parsed(config)?, &like);
        if before.is_ok_and(|before| before.is_some_and(|before| names_of(&before) == names_of_own(&own))) {
            with_sizes(config, sizes, family.usual_config)?;
            let tensors = family.tensors(&parsed(config)?, &like).map_err(as_student)?.unwrap_or_default();
            return Self::of_shapes(family, config, tensors, device);
        }
        self.resized(family, config, sizes, device)
    }

    /// Creates a network whose sizes follow from the use of each weight, and updates `config`.
    fn resized(
        &self,
        family: &'static Family,
        config: &mut Map<String, Value>,
        sizes: &Map<String, Value>,
        device: &Device,
    ) -> Result<(Self, NameMap)> {
        let before = parsed(config)?;
        let found = resized(self.graph(), &before, &before);
        found.map_err(|error| as_student(Error { message: format!("{}: {}", family.name, error.message), ..error }))?;
        let is_other = |(key, value): &(&String, &Value)| {
            value.is_u64() && !is_size(key) && config.get(*key).is_some_and(|teacher| teacher != *value)
        };
        if let Some((key, _)) = sizes.iter().find(is_other) {
            let known: Vec<&str> = config.keys().map(String::as_str).filter(|key| is_size(key)).collect();
            let message = format!("{key} cannot be changed; the sizes that can are {}", known.join(", "));
            return Err(Error::config(message).at("student"));
        }
        with_sizes(config, sizes, family.usual_config)?;
        let tensors = resized(self.graph(), &before, &parsed(config)?).map_err(as_student)?;
        let (network, names) = Self::of_shapes(family, config, tensors, device)?;
        match network.graph().unused.first() {
            None => Ok((network, names)),
            Some(name) => {
                let message = format!("a network of these sizes has no tensor {name:?}; choose other sizes");
                Err(Error::config(message).at("student"))
            }
        }
    }

    /// Returns the headers of all weights that the network holds.
    fn tensors(&self) -> Result<Vec<TensorInfo>> {
        let weights = self.outline.index.weights().map(|weight| &self.graph().weights[weight.0]);
        weights.map(|weight| TensorInfo::checked(weight.name.clone(), weight.dtype, weight.shape.0.clone())).collect()
    }

    fn of_shapes(
        family: &'static Family,
        config: &Map<String, Value>,
        TensorShapes(tensors): TensorShapes,
        device: &Device,
    ) -> Result<(Self, NameMap)> {
        let header = |(name, shape)| TensorInfo::checked(name, DType::F32, shape);
        let tensors = tensors.into_iter().map(header).collect::<Result<Vec<_>>>().map_err(as_student)?;
        let words = config.get("vocab_size").and_then(Value::as_u64).unwrap_or_default() as usize;
        let usual_padding = (family.task == Task::Encoder).then_some(0);
        let initial = Initial::of(family.fresh, config, words, usual_padding)?;
        Self::of_headers(
            family,
            &Headers::new(&tensors, None),
            &parsed(config)?,
            (initial, &FixedGrids::default()),
            device,
        )
        .map_err(as_student)
    }
}

fn parsed(config: &Map<String, Value>) -> Result<Config> {
    let bytes = serde_json::to_vec(config).map_err(|error| Error::bug(format!("config.json: {error}")))?;
    Config::parse(Some(&bytes))
}

/// Turns an error about config.json into one about the student's sizes.
fn as_student(error: Error) -> Error {
    Error::config(error.to_string()).at("student")
}

fn names_of(shapes: &TensorShapes) -> BTreeSet<String> {
    shapes.0.iter().map(|(name, _)| name.clone()).collect()
}

/// Returns the names of tensors, where norms have torch's names and not TensorFlow's.
fn names_of_own(tensors: &[TensorInfo]) -> BTreeSet<String> {
    let torch = |name: &str| match name.rsplit_once('.') {
        Some((path, "gamma")) => format!("{path}.weight"),
        Some((path, "beta")) => format!("{path}.bias"),
        _ => name.to_string(),
    };
    tensors.iter().map(|info| torch(&info.name)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
