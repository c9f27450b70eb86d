//! Random initialization of networks, as in transformers, torchvision and torch.

use crate::layers::{Conv2d, Conv2dConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use briquette_core::{Error, Result};
use briquette_graph::FreshWeights;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use serde_json::{Map, Value};

/// Default standard deviation of a transformer's weights.
const USUAL_RANGE: f64 = 0.02;

/// How the weights of a network are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Initial {
    kind: FreshWeights,
    /// Standard deviation of normal weights.
    range: f64,
    /// The row of the table of words that is zero.
    pub(crate) padding: Option<usize>,
}

impl Default for Initial {
    fn default() -> Self {
        Self { kind: FreshWeights::Normal, range: USUAL_RANGE, padding: None }
    }
}

impl Initial {
    /// Reads the settings of a config.json. `words` is the number of tokens, `usual_padding` the default padding token.
    ///
    /// # Errors
    /// Config: `initializer_range` is no standard deviation.
    pub(crate) fn of(
        kind: FreshWeights,
        config: &Map<String, Value>,
        words: usize,
        usual_padding: Option<i64>,
    ) -> Result<Self> {
        Ok(Self { kind, range: range_of(config)?, padding: padding_of(config, words, usual_padding) })
    }

    /// Creates a linear layer: normal weights and zero bias, or torch's uniform ones.
    pub(crate) fn linear(&self, [n_out, n_in]: [usize; 2], has_bias: bool, device: &Device) -> Linear {
        let config = LinearConfig::new(n_in, n_out);
        if self.kind != FreshWeights::Normal {
            return config.with_bias(has_bias).init(device);
        }
        let config = config.with_bias(false).with_initializer(normal(self.range));
        let bias = has_bias.then(|| Initializer::Zeros.init([n_out], device));
        Linear { bias, ..config.init(device) }
    }

    /// Creates an embedding table with normal rows; the row of padding is zero.
    pub(crate) fn table(&self, [n, width]: [usize; 2], padding: Option<usize>, device: &Device) -> Embedding {
        let mut table = EmbeddingConfig::new(n, width).with_initializer(normal(self.range)).init(device);
        if let Some(row) = padding {
            table.weight = table.weight.init_mapper(move |weight| weight.slice_fill([row..row + 1, 0..width], 0.0));
        }
        table
    }

    /// Creates a convolution with weights from `normal(0, sqrt(2 / fan_out))`, `fan_out = out · ky · kx`, also with
    /// groups, or torch's uniform ones.
    ///
    /// Source: He et al., "Delving Deep into Rectifiers", 2015, eq. 14; the ResNets of torchvision and
    /// transformers.
    pub(crate) fn conv(&self, config: Conv2dConfig, device: &Device) -> Conv2d {
        if self.kind == FreshWeights::Uniform {
            return config.init(device);
        }
        let fan_out = config.channels[1] * config.kernel_size[0] * config.kernel_size[1];
        config.with_initializer(normal((2.0 / fan_out as f64).sqrt())).init(device)
    }

    /// Returns the distribution of parameters that belong to no layer.
    pub(crate) fn parameter(&self) -> Initializer {
        normal(self.range)
    }
}

/// Reads `initializer_range` of a config.json.
fn range_of(config: &Map<String, Value>) -> Result<f64> {
    let found = config.get("initializer_range").filter(|value| !value.is_null());
    let range = found.map_or(Some(USUAL_RANGE), Value::as_f64);
    let shown = found.map(Value::to_string).unwrap_or_default();
    range.filter(|range| range.is_finite() && *range > 0.0).ok_or_else(|| {
        let message = format!("initializer_range: found {shown}, expected a standard deviation above 0");
        Error::config(message).at("student")
    })
}

/// Returns the padding row of a table with `n` rows: `pad_token_id` of a config.json, or `usual`. Negative ids
/// count from the end, as in torch.
fn padding_of(config: &Map<String, Value>, n: usize, usual: Option<i64>) -> Option<usize> {
    let id = config.get("pad_token_id").map_or(usual, Value::as_i64)?;
    let row = if id < 0 { id.checked_add_unsigned(n as u64)? } else { id };
    usize::try_from(row).ok().filter(|row| *row < n)
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Initializes all parameters now, in order.
///
/// burn initializes a parameter when it is first read, from one stream of random numbers, so another order
/// gives other values.
pub(crate) fn draw<M: Module>(network: &M) {
    network.visit(&mut Draw);
}

struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.base());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn initializer_range_is_read_defaulted_or_refused() {
        assert_eq!(range_of(&map(json!({}))).unwrap(), 0.02);
        assert_eq!(range_of(&map(json!({ "initializer_range": null }))).unwrap(), 0.02);
        assert_eq!(range_of(&map(json!({ "initializer_range": 0.5 }))).unwrap(), 0.5);
        for bad in [json!(0), json!(-1.0), json!("wide")] {
            let error = range_of(&map(json!({ "initializer_range": bad }))).unwrap_err();
            assert!(error.to_string().starts_with("student: initializer_range: found"), "{error}");
        }
    }

    #[test]
    fn padding_index_is_within_the_table() {
        let of = |value: Value, usual| padding_of(&map(value), 20, usual);
        assert_eq!(of(json!({}), Some(0)), Some(0));
        assert_eq!(of(json!({}), None), None);
        assert_eq!(of(json!({ "pad_token_id": null }), Some(0)), None);
        assert_eq!(of(json!({ "pad_token_id": 7 }), None), Some(7));
        assert_eq!(of(json!({ "pad_token_id": -1 }), None), Some(19));
        assert_eq!(of(json!({ "pad_token_id": 20 }), None), None);
        assert_eq!(of(json!({ "pad_token_id": -21 }), None), None);
    }
}
