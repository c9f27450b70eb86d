//! BERT's encoder, with the parameter names of Hugging Face's `BertModel`.

mod checkpoint;
mod config;
mod trace;

use crate::attention::attend_to_tokens;
use crate::fresh;
use crate::layers::{Dropout, DropoutConfig, Embedding, LayerNorm, LayerNormConfig, Linear};
use crate::layers::{feed_forward, self_attention};
use crate::low_rank::{Linears, below};
use briquette_ops::fused::in_parts;
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
pub(crate) use checkpoint::{MODEL_TYPES, blank, has_names, input};
pub use config::{BertConfig, HiddenActivation};
pub use trace::BertTrace;

impl BertConfig {
    /// Creates a network with random weights, initialized as in transformers.
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

/// Word, position and segment embeddings.
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
        let words = self.word_embeddings.forward(tokens);
        let places = self.position_embeddings.forward(positions) + self.token_type_embeddings.forward(segment);
        let places = places.expand(words.dims());
        self.dropout.forward(self.layer_norm.forward_sum(words, places))
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
        let at_once = self_attention(&x, [&self.query, &self.key, &self.value], self.n_heads, &padding);
        if let Some(attended) = at_once {
            return attended;
        }
        let (q, k) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        attend_to_tokens([q, k, self.value.forward(x)], self.n_heads, padding, &self.dropout)
    }
}

/// A linear layer, a residual connection and a norm.
#[derive(Module, Debug)]
struct BertOutput {
    dense: Linear,
    layer_norm: LayerNorm,
    dropout: Dropout,
}

impl BertOutput {
    fn forward(&self, x: Tensor<3>, shortcut: Tensor<3>) -> Tensor<3> {
        self.after_dense(self.dense.forward(x), shortcut)
    }

    fn after_dense(&self, x: Tensor<3>, shortcut: Tensor<3>) -> Tensor<3> {
        self.layer_norm.forward_sum(self.dropout.forward(x), shortcut)
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
    activation: HiddenActivation,
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
        let BertIntermediate { dense, activation } = &self.intermediate;
        let at_once = activation.on_codes().and_then(|known| feed_forward(&x, [dense, &self.output.dense], known));
        match at_once {
            Some(narrow) => self.output.after_dense(narrow, x),
            None => self.output.forward(activation.apply(dense.forward(x.clone())), x),
        }
    }
}

#[derive(Module, Debug)]
struct BertEncoder {
    layer: Vec<BertLayer>,
}

/// BERT without a head. Dropout applies during training: on an autodiff device, unless the module is `valid()`
/// or frozen.
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
    /// Maps tokens `[batch, length]` to the last hidden state `[batch, length, width]`.
    ///
    /// `padding` is true at padding tokens; every row needs at least one other token.
    ///
    /// # Panics
    /// If the length exceeds the positions of the model, or a token exceeds its vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        in_parts(&tokens.device(), tokens.dims(), |its| {
            let (tokens, padding) = (tokens.clone().slice_dim(0, its.clone()), padding.clone().slice_dim(0, its));
            self.forward_at_once(tokens, padding)
        })
    }

    fn forward_at_once(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let embedded = self.embeddings.forward(tokens);
        self.encoder.layer.iter().fold(embedded, |x, layer| layer.forward(x, padding.clone()))
    }

    /// Like [`Bert::forward`], with all hidden states: of the embeddings, then of each layer.
    pub fn hidden_states(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Vec<Tensor<3>> {
        let mut states = vec![self.embeddings.forward(tokens)];
        for layer in &self.encoder.layer {
            let next = layer.forward(states[states.len() - 1].clone(), padding.clone());
            states.push(next);
        }
        states
    }
}
