//! The configuration of BERT, as in Hugging Face's config.json.

use crate::config::check_sizes;
use crate::fresh;
use briquette_ops::compressed::FeedForwardActivation;
use briquette_ops::fused::gelu;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu_approximate, relu, silu};
use serde::{Deserialize, Serialize};

/// Activation function of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenActivation {
    /// `x * Phi(x)`, exactly.
    #[default]
    Gelu,
    /// GELU with the tanh approximation.
    #[serde(alias = "gelu_pytorch_tanh", alias = "gelu_fast")]
    GeluNew,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    #[serde(alias = "swish")]
    Silu,
}

impl HiddenActivation {
    /// Returns the function for fused blocks on codes, if supported.
    pub(crate) const fn on_codes(self) -> Option<FeedForwardActivation> {
        match self {
            Self::Gelu => Some(FeedForwardActivation::Gelu),
            Self::Relu => Some(FeedForwardActivation::Relu),
            Self::GeluNew | Self::Silu => None,
        }
    }

    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => gelu(x),
            Self::GeluNew => gelu_approximate(x),
            Self::Relu => relu(x),
            Self::Silu => silu(x),
        }
    }
}

/// Configuration of a [`Bert`](super::Bert), with the keys of config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BertConfig {
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Width inside a feed-forward block.
    pub intermediate_size: usize,
    /// Longest input in tokens.
    pub max_position_embeddings: usize,
    /// Number of segment types; only the first is used.
    #[serde(default = "two")]
    pub type_vocab_size: usize,
    /// Epsilon of the norms.
    #[serde(default = "tiny")]
    pub layer_norm_eps: f64,
    /// Activation function of the feed-forward blocks.
    #[serde(default)]
    pub hidden_act: HiddenActivation,
    /// Dropout rate of hidden states, after the embeddings and each linear output.
    #[serde(default = "tenth")]
    pub hidden_dropout_prob: f64,
    /// Dropout rate of attention probabilities.
    #[serde(default = "tenth")]
    pub attention_probs_dropout_prob: f64,
    /// Only `absolute` is supported.
    #[serde(default)]
    pub position_embedding_type: Option<String>,
    /// Whether attention is causal, which is not supported.
    #[serde(default)]
    pub is_decoder: bool,
    /// Standard deviation of the random initialization.
    #[serde(skip, default = "fresh::usual_range")]
    pub initializer_range: f64,
    /// Token whose embedding is initialized to zeros.
    #[serde(skip)]
    pub padding: Option<usize>,
}

fn tenth() -> f64 {
    0.1
}

fn two() -> usize {
    2
}

fn tiny() -> f64 {
    1e-12
}

impl BertConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        check_sizes(&[self.vocab_size, self.intermediate_size, self.max_position_embeddings])?;
        check_sizes(&[self.type_vocab_size, width, heads])?;
        if self.layer_norm_eps.is_nan() || self.layer_norm_eps <= 0.0 {
            return Err("layer_norm_eps is not above 0; correct it".into());
        }
        let shares = [self.hidden_dropout_prob, self.attention_probs_dropout_prob];
        if let Some(share) = shares.iter().find(|share| !(0.0..1.0).contains(*share)) {
            return Err(format!("a dropout rate is {share}, expected 0 to below 1; correct it"));
        }
        if !width.is_multiple_of(heads) {
            return Err(format!("{heads} heads do not divide a width of {width}; correct it"));
        }
        if self.is_decoder {
            return Err("is_decoder is true, but a BERT with causal attention is not supported".into());
        }
        match self.position_embedding_type.as_deref() {
            None | Some("absolute") => Ok(()),
            Some(other) => Err(format!("position_embedding_type is {other:?}, expected \"absolute\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_models_are_not_encoders() {
        let config = |extra: &str| -> BertConfig {
            let sizes = "\"vocab_size\": 9, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": 1";
            let rest = "\"num_attention_heads\": 2, \"max_position_embeddings\": 8";
            serde_json::from_str(&format!("{{{sizes}, {rest}{extra}}}")).unwrap()
        };
        assert!(config("").validate().is_ok() && config(", \"is_decoder\": false").validate().is_ok());
        assert!(config(", \"is_decoder\": true").validate().unwrap_err().starts_with("is_decoder is true"));
    }
}
