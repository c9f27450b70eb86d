//! BERT's encoder, with the parameter names of Hugging Face's `BertModel`.

mod trace;

use crate::Arch;
use crate::attention::attend_to_tokens;
use crate::config::{Folder, check_layers, check_sizes};
use crate::fresh;
use crate::layers::{Dropout, DropoutConfig, Embedding, LayerNorm, LayerNormConfig, Linear};
use crate::low_rank::{Linears, below};
use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_kernels::ops::{gelu, rows_at_once};
use burn::module::Module;
use burn::tensor::activation::{gelu_approximate, relu, silu};
use burn::tensor::{Bool, Device, Int, Tensor};
use serde::{Deserialize, Serialize};
pub use trace::Trace;

/// The function between the two layers of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * Phi(x)`, exactly.
    #[default]
    Gelu,
    /// GELU by tanh.
    #[serde(alias = "gelu_pytorch_tanh", alias = "gelu_fast")]
    GeluNew,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    #[serde(alias = "swish")]
    Silu,
}

impl Activation {
    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => gelu(x),
            Self::GeluNew => gelu_approximate(x),
            Self::Relu => relu(x),
            Self::Silu => silu(x),
        }
    }
}

/// The sizes of a [`Bert`]; the keys of its config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BertConfig {
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Attention heads, which share the width.
    pub num_attention_heads: usize,
    /// Width inside a feed-forward block.
    pub intermediate_size: usize,
    /// Longest input.
    pub max_position_embeddings: usize,
    /// Kinds of segments; the first is used.
    #[serde(default = "two")]
    pub type_vocab_size: usize,
    /// What keeps the norms from dividing by zero.
    #[serde(default = "tiny")]
    pub layer_norm_eps: f64,
    /// The function inside a feed-forward block.
    #[serde(default)]
    pub hidden_act: Activation,
    /// Share of the hidden states that training drops, after the embeddings and each linear output.
    #[serde(default = "tenth")]
    pub hidden_dropout_prob: f64,
    /// Share of the attention weights that training drops.
    #[serde(default = "tenth")]
    pub attention_probs_dropout_prob: f64,
    /// Only `absolute` is known.
    #[serde(default)]
    pub position_embedding_type: Option<String>,
    /// Whether tokens see only those before them, which is not run.
    #[serde(default)]
    pub is_decoder: bool,
    /// The standard deviation of weights that are drawn at random.
    #[serde(skip, default = "fresh::usual_range")]
    pub initializer_range: f64,
    /// The word whose vector is zeros then.
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
    pub(crate) fn read(folder: &Folder, checkpoint: &Checkpoint) -> Result<Self> {
        folder.check_model_type(Arch::Bert)?;
        let config: Self = folder.config()?;
        let sound = config.validate().and_then(|()| check_layers(config.num_hidden_layers, checkpoint));
        sound.map_err(|message| folder.config_error(message))?;
        Ok(config)
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        let (width, heads) = (self.hidden_size, self.num_attention_heads);
        check_sizes(&[self.vocab_size, self.intermediate_size, self.max_position_embeddings])?;
        check_sizes(&[self.type_vocab_size, width, heads])?;
        if self.layer_norm_eps.is_nan() || self.layer_norm_eps <= 0.0 {
            return Err("layer_norm_eps is not above 0; correct it".into());
        }
        let shares = [self.hidden_dropout_prob, self.attention_probs_dropout_prob];
        if let Some(share) = shares.iter().find(|share| !(0.0..1.0).contains(*share)) {
            return Err(format!("a dropout is {share}, expected 0 to below 1; correct it"));
        }
        if !width.is_multiple_of(heads) {
            return Err(format!("{heads} heads cannot share a width of {width}; correct it"));
        }
        if self.is_decoder {
            return Err(
                "is_decoder is true, so that tokens see only those before them, and only encoders can be run".into()
            );
        }
        match self.position_embedding_type.as_deref() {
            None | Some("absolute") => Ok(()),
            Some(other) => Err(format!("position_embedding_type is {other:?}, only \"absolute\" can be run")),
        }
    }

    /// A network of these sizes with random weights, as transformers draws them.
    ///
    /// # Panics
    /// If a size is 0 or the heads do not divide the width.
    pub fn init(&self, device: &Device) -> Bert {
        let table = |n, padding| fresh::table(n, self.hidden_size, self.initializer_range, padding, device);
        let embeddings = BertEmbeddings {
            word_embeddings: table(self.vocab_size, self.padding),
            position_embeddings: table(self.max_position_embeddings, None),
            token_type_embeddings: table(self.type_vocab_size, None),
            layer_norm: self.norm(device),
            dropout: self.dropout(),
        };
        let layer = (0..self.num_hidden_layers).map(|_| self.layer(device)).collect();
        Bert { embeddings, encoder: BertEncoder { layer } }
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.hidden_size).with_epsilon(self.layer_norm_eps).init(device)
    }

    fn dropout(&self) -> Dropout {
        DropoutConfig::new(self.hidden_dropout_prob).init()
    }

    fn linear(&self, d_input: usize, d_output: usize, device: &Device) -> Linear {
        fresh::linear(d_input, d_output, true, self.initializer_range, device)
    }

    fn output(&self, width: usize, device: &Device) -> BertOutput {
        let dense = self.linear(width, self.hidden_size, device);
        BertOutput { dense, layer_norm: self.norm(device), dropout: self.dropout() }
    }

    fn layer(&self, device: &Device) -> BertLayer {
        let square = || self.linear(self.hidden_size, self.hidden_size, device);
        let n_heads = self.num_attention_heads;
        let dropout = DropoutConfig::new(self.attention_probs_dropout_prob).init();
        let self_ = BertSelfAttention { query: square(), key: square(), value: square(), n_heads, dropout };
        BertLayer {
            attention: BertAttention { self_, output: self.output(self.hidden_size, device) },
            intermediate: BertIntermediate {
                dense: self.linear(self.hidden_size, self.intermediate_size, device),
                activation: self.hidden_act,
            },
            output: self.output(self.intermediate_size, device),
        }
    }
}

/// The tables of words, positions and segments.
#[derive(Module, Debug)]
struct BertEmbeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    layer_norm: LayerNorm,
    dropout: Dropout,
}

impl BertEmbeddings {
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let segment = Tensor::<2, Int>::zeros([1, 1], &device);
        let x = self.word_embeddings.forward(tokens) + self.position_embeddings.forward(positions);
        self.dropout.forward(self.layer_norm.forward(x + self.token_type_embeddings.forward(segment)))
    }
}

#[derive(Module, Debug)]
struct BertSelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    n_heads: usize,
    dropout: Dropout,
}

impl BertSelfAttention {
    fn forward(&self, x: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let (q, k) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        attend_to_tokens([q, k, self.value.forward(x)], self.n_heads, padding, &self.dropout)
    }
}

/// A linear layer, the shortcut around what came before, and a norm.
#[derive(Module, Debug)]
struct BertOutput {
    dense: Linear,
    layer_norm: LayerNorm,
    dropout: Dropout,
}

impl BertOutput {
    fn forward(&self, x: Tensor<3>, shortcut: Tensor<3>) -> Tensor<3> {
        self.layer_norm.forward_sum(self.dropout.forward(self.dense.forward(x)), shortcut)
    }
}

#[derive(Module, Debug)]
struct BertAttention {
    self_: BertSelfAttention,
    output: BertOutput,
}

#[derive(Module, Debug)]
struct BertIntermediate {
    dense: Linear,
    #[module(skip)]
    activation: Activation,
}

#[derive(Module, Debug)]
struct BertLayer {
    attention: BertAttention,
    intermediate: BertIntermediate,
    output: BertOutput,
}

impl BertLayer {
    fn forward(&self, x: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let attended = self.attention.self_.forward(x.clone(), padding);
        self.after_attention(attended, x)
    }

    fn after_attention(&self, attended: Tensor<3>, x: Tensor<3>) -> Tensor<3> {
        let x = self.attention.output.forward(attended, x);
        let wide = self.intermediate.activation.apply(self.intermediate.dense.forward(x.clone()));
        self.output.forward(wide, x)
    }
}

#[derive(Module, Debug)]
struct BertEncoder {
    layer: Vec<BertLayer>,
}

/// BERT without a head. Dropout acts while it trains: on an autodiff device, and not once it is `valid()` or frozen.
#[derive(Module, Debug)]
pub struct Bert {
    embeddings: BertEmbeddings,
    encoder: BertEncoder,
}

impl Linears for Bert {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        let layers = self.encoder.layer.iter_mut().enumerate();
        layers.flat_map(|(index, layer)| below(format!("encoder.layer.{index}"), layer.linears())).collect()
    }
}

impl Linears for BertLayer {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        let BertAttention { self_: BertSelfAttention { query, key, value, .. }, output } = &mut self.attention;
        let found = [
            ("attention.self_.query", query),
            ("attention.self_.key", key),
            ("attention.self_.value", value),
            ("attention.output.dense", &mut output.dense),
            ("intermediate.dense", &mut self.intermediate.dense),
            ("output.dense", &mut self.output.dense),
        ];
        found.into_iter().map(|(path, linear)| (path.to_string(), linear)).collect()
    }
}

impl Bert {
    /// Tokens `[batch, length]` to the last hidden state `[batch, length, width]`. `padding` is true where a token is
    /// none; no row may be padding throughout.
    ///
    /// # Panics
    /// If the length is beyond the positions the model has, or a token beyond its vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let at_once = rows_at_once(&tokens.device()).map_or(batch, |rows| (rows / length.max(1)).max(1));
        if batch <= at_once {
            return self.forward_at_once(tokens, padding);
        }
        // Sequences do not meet, and a few at a time stay in the cache.
        let parts = (0..batch).step_by(at_once).map(|start| {
            let n = at_once.min(batch - start);
            self.forward_at_once(tokens.clone().narrow(0, start, n), padding.clone().narrow(0, start, n))
        });
        Tensor::cat(parts.collect(), 0)
    }

    fn forward_at_once(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let embedded = self.embeddings.forward(tokens);
        self.encoder.layer.iter().fold(embedded, |x, layer| layer.forward(x, padding.clone()))
    }

    /// As [`Bert::forward`], with every hidden state: of the embeddings, then of each layer.
    pub fn hidden_states(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Vec<Tensor<3>> {
        let mut states = vec![self.embeddings.forward(tokens)];
        for layer in &self.encoder.layer {
            let next = layer.forward(states[states.len() - 1].clone(), padding.clone());
            states.push(next);
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sees_only_what_came_before_is_no_encoder() {
        let config = |extra: &str| -> BertConfig {
            let sizes = "\"vocab_size\": 9, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": 1";
            let rest = "\"num_attention_heads\": 2, \"max_position_embeddings\": 8";
            serde_json::from_str(&format!("{{{sizes}, {rest}{extra}}}")).unwrap()
        };
        assert!(config("").validate().is_ok() && config(", \"is_decoder\": false").validate().is_ok());
        assert!(config(", \"is_decoder\": true").validate().unwrap_err().starts_with("is_decoder is true"));
    }
}
