//! Llama's decoder, with the parameter names of Hugging Face's `LlamaForCausalLM`: RMS norms, rotary positions, grouped
//! queries, gated feed-forward blocks, and a head of its own or the embedding's.

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
    /// A network of these sizes with random weights, as transformers draws them.
    ///
    /// # Panics
    /// If the sizes were not read by [`crate::LoadedModel::open`] and contradict each other.
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

    /// Queries, keys and values `[batch, length, heads * width]`, the former two turned by their positions.
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

    /// As far as the input of its last layer.
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
    /// Tokens `[batch, length]` to scores of each next token `[batch, length, vocabulary]`. Padding on the right needs
    /// no mask: no token sees what comes after it.
    ///
    /// # Panics
    /// If a token is beyond the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.scores(self.last_state(tokens))
    }

    /// Tokens `[batch, length]` to what the head takes, `[batch, length, width]`.
    pub fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let rotation = self.rotation(tokens.dims()[1]);
        let embedded = self.model.embed_tokens.forward(tokens);
        let last = self.model.layers.iter().fold(embedded, |x, layer| layer.forward(x, &rotation));
        self.normed(last)
    }

    /// Of the first `length` positions.
    fn rotation(&self, length: usize) -> Rotation {
        Rotation::new(&self.inverse_frequencies, 0..length)
    }

    /// The head: `[batch, length, width]` to `[batch, length, vocabulary]`.
    pub fn scores(&self, last_state: Tensor<3>) -> Tensor<3> {
        match &self.lm_head {
            Some(head) => head.forward(last_state),
            None => self.model.embed_tokens.product(last_state),
        }
    }

    /// Whether the embedding is the head too.
    pub(crate) fn is_tied(&self) -> bool {
        self.lm_head.is_none()
    }

    /// Entries of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.model.embed_tokens.weight.lazy_shape()[0]
    }

    /// The hidden state after each layer, and the scores of [`forward`](Self::forward).
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn trace(&self, tokens: Tensor<2, Int>) -> (Vec<Tensor<3>>, Tensor<3>) {
        let mut states = self.hidden_states(tokens);
        let scores = self.leave(states[states.len() - 1].clone());
        (states.split_off(1), scores)
    }

    /// What the first layer takes, `[batch, length, width]`.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.model.embed_tokens.forward(tokens)
    }

    /// What layer `index` makes of a state.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, index: usize, state: Tensor<3>) -> Tensor<3> {
        let rotation = self.rotation(state.dims()[1]);
        self.model.layers[index].forward(state, &rotation)
    }

    /// Shows the linear layers of layer `index` what they take.
    pub(crate) fn show_layer(&self, index: usize, state: Tensor<3>) {
        let rotation = self.rotation(state.dims()[1]);
        self.model.layers[index].only_show(state, &rotation);
    }

    /// Scores of each next token, of the state after the last layer.
    pub fn leave(&self, state: Tensor<3>) -> Tensor<3> {
        self.scores(self.normed(state))
    }

    /// What the head takes, of the state after the last layer.
    pub(crate) fn normed(&self, state: Tensor<3>) -> Tensor<3> {
        normed(&self.model.norm, state)
    }

    /// Layers it has.
    pub fn n_layers(&self) -> usize {
        self.model.layers.len()
    }

    /// A network of its embedding, its head and these of its layers, in this order, with their weights.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn with_layers(&self, layers: &[usize]) -> Self {
        let layers = layers.iter().map(|&layer| self.model.layers[layer].clone()).collect();
        Self { model: LlamaModel { layers, ..self.model.clone() }, ..self.clone() }
    }

    /// `config` with biases where this network has them.
    pub(crate) fn with_biases(&self, mut config: LlamaConfig) -> LlamaConfig {
        if let Some(LlamaLayer { self_attn, mlp, .. }) = self.model.layers.first() {
            config.qkv_bias = self_attn.q_proj.bias.is_some();
            config.output_bias = self_attn.o_proj.bias.is_some();
            config.mlp_bias = mlp.gate_proj.bias.is_some();
        }
        config
    }

    /// Every hidden state before the last norm: of the embeddings, then of each layer.
    pub fn hidden_states(&self, tokens: Tensor<2, Int>) -> Vec<Tensor<3>> {
        let mut states = vec![self.embed(tokens)];
        for index in 0..self.n_layers() {
            states.push(self.layer(index, states[index].clone()));
        }
        states
    }
}
