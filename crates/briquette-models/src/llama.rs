//! Llama's decoder, with the parameter names of Hugging Face's `LlamaForCausalLM`.
//!
//! It has RMS norms, rotary positions, grouped-query attention, SwiGLU blocks, and a separate or tied head.

mod cached;
mod checkpoint;
mod config;

use crate::attention::attend_causally;
use crate::fresh;
use crate::layers::{Embedding, Linear, RmsNorm, RmsNormConfig, normed};
use crate::low_rank::{Linears, below};
use crate::rope::Rotation;
use briquette_ops::fused::swiglu;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
pub(crate) use checkpoint::{MODEL_TYPES, blank, has_names, input};
pub use config::{LlamaConfig, RopeParameters};

impl LlamaConfig {
    /// Creates a network with random weights, initialized as in transformers.
    ///
    /// # Panics
    /// If sizes contradict each other; [`crate::LoadedModel::open`] checks them.
    pub fn init(&self, device: &Device) -> Llama {
        let layers = (0..self.num_hidden_layers).map(|_| self.layer(device)).collect();
        let table = fresh::table(self.vocab_size, self.hidden_size, self.initializer_range, self.padding, device);
        let embed_tokens = if self.tie_word_embeddings { table.as_head() } else { table };
        let head = || fresh::linear(self.hidden_size, self.vocab_size, false, self.initializer_range, device);
        Llama {
            model: LlamaModel { embed_tokens, layers, norm: self.norm(device) },
            lm_head: (!self.tie_word_embeddings).then(head),
            inverse_frequencies: self.inverse_frequencies(),
            max_positions: self.max_positions(),
        }
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.hidden_size).with_epsilon(self.rms_norm_eps).init(device)
    }

    fn layer(&self, device: &Device) -> LlamaLayer {
        let linear = |n_in, n_out, bias| fresh::linear(n_in, n_out, bias, self.initializer_range, device);
        let (width, head) = (self.hidden_size, self.head_width());
        let (n_heads, n_kv_heads) = (self.num_attention_heads, self.n_kv_heads());
        let self_attn = LlamaAttention {
            q_proj: linear(width, n_heads * head, self.qkv_bias),
            k_proj: linear(width, n_kv_heads * head, self.qkv_bias),
            v_proj: linear(width, n_kv_heads * head, self.qkv_bias),
            o_proj: linear(n_heads * head, width, self.output_bias),
            n_heads,
            n_kv_heads,
        };
        let mlp = LlamaMlp {
            gate_proj: linear(width, self.intermediate_size, self.mlp_bias),
            up_proj: linear(width, self.intermediate_size, self.mlp_bias),
            down_proj: linear(self.intermediate_size, width, self.mlp_bias),
        };
        LlamaLayer { self_attn, mlp, input_layernorm: self.norm(device), post_attention_layernorm: self.norm(device) }
    }
}

#[derive(Module, Debug)]
struct LlamaAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    n_heads: usize,
    n_kv_heads: usize,
}

impl LlamaAttention {
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let [q, k, v] = self.projected(x, rotation);
        self.o_proj.forward(attend_causally([q, k, v], self.n_heads, self.n_kv_heads))
    }

    /// Returns queries, keys and values `[batch, length, heads * width]`, with rotary positions applied to
    /// queries and keys.
    fn projected(&self, x: Tensor<3>, rotation: &Rotation) -> [Tensor<3>; 3] {
        let q = rotation.apply(self.q_proj.forward(x.clone()), self.n_heads);
        let k = rotation.apply(self.k_proj.forward(x.clone()), self.n_kv_heads);
        [q, k, self.v_proj.forward(x)]
    }
}

#[derive(Module, Debug)]
struct LlamaMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl LlamaMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down_proj.forward(self.gated(x))
    }

    fn gated(&self, x: Tensor<3>) -> Tensor<3> {
        swiglu(self.gate_proj.forward(x.clone()), self.up_proj.forward(x))
    }
}

#[derive(Module, Debug)]
struct LlamaLayer {
    self_attn: LlamaAttention,
    mlp: LlamaMlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl LlamaLayer {
    fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let x = self.attended(x, rotation);
        self.fed_forward(x)
    }

    fn fed_forward(&self, x: Tensor<3>) -> Tensor<3> {
        x.clone() + self.mlp.forward(normed(&self.post_attention_layernorm, x))
    }

    fn attended(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        x.clone() + self.self_attn.forward(normed(&self.input_layernorm, x), rotation)
    }

    /// Runs up to the input of the last linear layer, for probes.
    fn only_show(&self, x: Tensor<3>, rotation: &Rotation) {
        let x = normed(&self.post_attention_layernorm, self.attended(x, rotation));
        self.mlp.down_proj.only_show(self.mlp.gated(x));
    }
}

#[derive(Module, Debug)]
struct LlamaModel {
    embed_tokens: Embedding,
    layers: Vec<LlamaLayer>,
    norm: RmsNorm,
}

/// Llama with its head.
#[derive(Module, Debug)]
pub struct Llama {
    model: LlamaModel,
    lm_head: Option<Linear>,
    #[module(skip)]
    inverse_frequencies: Vec<f32>,
    #[module(skip)]
    max_positions: usize,
}

impl Linears for Llama {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        let layers = self.model.layers.iter_mut().enumerate();
        let found = layers.flat_map(|(index, layer)| below(format!("model.layers.{index}"), layer.linears()));
        found.chain(self.lm_head.as_mut().map(|head| ("lm_head".to_string(), head))).collect()
    }
}

impl Linears for LlamaLayer {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        let LlamaAttention { q_proj, k_proj, v_proj, o_proj, .. } = &mut self.self_attn;
        let LlamaMlp { gate_proj, up_proj, down_proj } = &mut self.mlp;
        let found = [
            ("self_attn.q_proj", q_proj),
            ("self_attn.k_proj", k_proj),
            ("self_attn.v_proj", v_proj),
            ("self_attn.o_proj", o_proj),
            ("mlp.gate_proj", gate_proj),
            ("mlp.up_proj", up_proj),
            ("mlp.down_proj", down_proj),
        ];
        found.into_iter().map(|(path, linear)| (path.to_string(), linear)).collect()
    }
}

impl Llama {
    /// Maps tokens `[batch, length]` to logits of the next tokens `[batch, length, vocabulary]`.
    ///
    /// Attention is causal, so padding on the right needs no mask.
    ///
    /// # Panics
    /// If a token exceeds the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.scores(self.last_state(tokens))
    }

    /// Maps tokens `[batch, length]` to the head's input `[batch, length, width]`.
    pub fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let rotation = self.rotation(tokens.dims()[1]);
        let embedded = self.model.embed_tokens.forward(tokens);
        let last = self.model.layers.iter().fold(embedded, |x, layer| layer.forward(x, &rotation));
        self.normed(last)
    }

    /// Returns the rotation of the first `length` positions.
    fn rotation(&self, length: usize) -> Rotation {
        Rotation::new(&self.inverse_frequencies, 0..length)
    }

    /// Applies the head: `[batch, length, width]` to logits `[batch, length, vocabulary]`.
    pub fn scores(&self, last_state: Tensor<3>) -> Tensor<3> {
        match &self.lm_head {
            Some(head) => head.forward(last_state),
            None => self.model.embed_tokens.product(last_state),
        }
    }

    /// Returns whether the head is the embedding.
    pub(crate) fn is_tied(&self) -> bool {
        self.lm_head.is_none()
    }

    /// Returns the size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.model.embed_tokens.weight.lazy_shape()[0]
    }

    /// Returns the hidden state after each layer, and the logits of [`forward`](Self::forward).
    ///
    /// # Panics
    /// See [`forward`](Self::forward).
    pub fn trace(&self, tokens: Tensor<2, Int>) -> (Vec<Tensor<3>>, Tensor<3>) {
        let mut states = self.hidden_states(tokens);
        let scores = self.leave(states[states.len() - 1].clone());
        (states.split_off(1), scores)
    }

    /// Returns the first layer's input `[batch, length, width]`.
    ///
    /// # Panics
    /// See [`forward`](Self::forward).
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.model.embed_tokens.forward(tokens)
    }

    /// Returns the output of layer `index`.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, index: usize, state: Tensor<3>) -> Tensor<3> {
        let rotation = self.rotation(state.dims()[1]);
        self.model.layers[index].forward(state, &rotation)
    }

    /// Passes the inputs of layer `index`'s linear layers to probes.
    pub(crate) fn show_layer(&self, index: usize, state: Tensor<3>) {
        let rotation = self.rotation(state.dims()[1]);
        self.model.layers[index].only_show(state, &rotation);
    }

    /// Maps the last layer's output to logits of the next tokens.
    pub fn leave(&self, state: Tensor<3>) -> Tensor<3> {
        self.scores(self.normed(state))
    }

    /// Maps the last layer's output to the head's input.
    pub(crate) fn normed(&self, state: Tensor<3>) -> Tensor<3> {
        normed(&self.model.norm, state)
    }

    /// Returns the number of layers.
    pub fn n_layers(&self) -> usize {
        self.model.layers.len()
    }

    /// Returns a network with the same embedding and head and these layers, in this order, with their weights.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn with_layers(&self, layers: &[usize]) -> Self {
        let layers = layers.iter().map(|&layer| self.model.layers[layer].clone()).collect();
        Self { model: LlamaModel { layers, ..self.model.clone() }, ..self.clone() }
    }

    /// Returns `config` with the biases that this network has.
    pub(crate) fn with_biases(&self, mut config: LlamaConfig) -> LlamaConfig {
        if let Some(LlamaLayer { self_attn, mlp, .. }) = self.model.layers.first() {
            config.qkv_bias = self_attn.q_proj.bias.is_some();
            config.output_bias = self_attn.o_proj.bias.is_some();
            config.mlp_bias = mlp.gate_proj.bias.is_some();
        }
        config
    }

    /// Returns all hidden states before the last norm: of the embeddings, then of each layer.
    pub fn hidden_states(&self, tokens: Tensor<2, Int>) -> Vec<Tensor<3>> {
        let mut states = vec![self.embed(tokens)];
        for index in 0..self.n_layers() {
            states.push(self.layer(index, states[index].clone()));
        }
        states
    }
}
