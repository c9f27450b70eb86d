//! Adapts the networks of `briquette-models` as students and teachers.

use crate::training::pixel_map::PixelMap;
use briquette_core::{Error, Result};
use briquette_distill::{Layered, Outputs, Traced, Wanted};
use briquette_eval::{Sampling, sample_tokens};
use briquette_models::NetworkTrace;
use briquette_models::graph_net::RunInputs;
use briquette_models::text::Pooling;
use briquette_models::{GraphNet, Input, LoadedModel};
use briquette_nn::ToDType;
use briquette_nn::layers::Linear;
use burn::module::Module;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

/// A network, and the pooling of its hidden states.
#[derive(Module, Debug)]
pub(crate) struct Learner {
    pub(crate) network: GraphNet,
    /// A layer from pooled states to the teacher's embedding width.
    pub(crate) dense: Option<Linear>,
    #[module(skip)]
    pooling: Option<Pooling>,
    #[module(skip)]
    compute: Option<FloatDType>,
    /// The normalization of images, if it differs from that of the batches.
    #[module(skip)]
    pixels: Option<PixelMap>,
    /// The number of tokens of an on-policy sample; half of a window if `None`.
    #[module(skip)]
    max_new_tokens: Option<usize>,
}

/// The input of a network.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a batch, on its way to the network")]
pub(crate) enum Inputs {
    /// Texts, or pairs of texts.
    Text(TextBatch),
    /// Tokens of running text, `[batch, length]`.
    ///
    /// The inputs are all but the last token of each row. The targets are those after the first `n_given`.
    Windows { tokens: Tensor<2, Int>, n_given: usize },
    /// Images, `[batch, channels, height, width]`.
    Images(Tensor<4>),
}

/// Tokens of texts, `[batch, length]`.
#[derive(Debug, Clone)]
pub(crate) struct TextBatch {
    pub(crate) tokens: Tensor<2, Int>,
    /// True at padding tokens.
    pub(crate) padding: Tensor<2, Bool>,
    /// The segment of each token, if texts have a second one.
    pub(crate) segments: Option<Tensor<2, Int>>,
}

impl TextBatch {
    fn inputs(&self) -> RunInputs {
        let inputs = RunInputs::padded(self.tokens.clone(), self.padding.clone());
        self.segments.iter().fold(inputs, |inputs, segments| inputs.with_types(segments.clone()))
    }
}

impl Learner {
    /// Creates a learner from a model. `compute` is the type in which its parameters are used.
    pub(crate) fn of(model: &LoadedModel, compute: Option<FloatDType>) -> Self {
        let pooling = match &model.input {
            Input::Text { pooling, .. } => Some(pooling.clone()),
            Input::Images(_) | Input::Pair { .. } => None,
        };
        let network = model.network.clone();
        Self { network, dense: None, pooling, compute, pixels: None, max_new_tokens: None }
    }

    /// Sets the number of tokens of an on-policy sample.
    pub(crate) fn sampling(self, max_new_tokens: Option<usize>) -> Self {
        Self { max_new_tokens, ..self }
    }

    /// Adds a layer after pooling.
    pub(crate) fn mapped(self, dense: Option<Linear>) -> Self {
        Self { dense, ..self }
    }

    /// Sets the map from the images of batches to those of this network.
    pub(crate) fn seeing(self, pixels: Option<PixelMap>) -> Self {
        Self { pixels, ..self }
    }

    fn of_text(&self, batch: &TextBatch, wanted: Wanted) -> Outputs {
        let padding = batch.padding.clone();
        if wanted.is_end_only() || self.network.has_no_blocks() {
            let states = self.network.encode_segments(batch.tokens.clone(), padding.clone(), batch.segments.clone());
            return self.embedded(states, Vec::new(), padding);
        }
        let NetworkTrace { hidden, attention, values } =
            self.network.trace(&batch.inputs(), wanted.attention || wanted.values);
        let attention = if wanted.attention { attention } else { Vec::new() };
        let values = if wanted.values { values } else { Vec::new() };
        Outputs { attention, values, ..self.ended(hidden, padding, wanted) }
    }

    /// Returns the logits of a text classifier, a row for each text or for each token that is not padding. A single score is one
    /// logit.
    fn classes(&self, states: Tensor<3>, padding: &Tensor<2, Bool>) -> Option<Tensor<2>> {
        if !self.network.classifies_text() {
            return None;
        }
        let logits =
            self.network.classes_of(states.into(), Some(padding.clone())).cast(FloatDType::F32).flatten::<2>(0, 1);
        Some(match self.network.classifies_tokens() {
            false => logits,
            true => logits.select(0, padding.clone().bool_not().flatten::<1>(0, 1).argwhere().squeeze_dim::<1>(1)),
        })
    }

    /// Returns the outputs of an encoder from the state after each block.
    fn ended(&self, hidden: Vec<Tensor<3>>, padding: Tensor<2, Bool>, wanted: Wanted) -> Outputs {
        // A norm may follow the last block.
        let last = self.network.leave(hidden[hidden.len() - 1].clone().into()).three();
        self.embedded(last, if wanted.hidden { hidden } else { Vec::new() }, padding)
    }

    /// Returns the outputs of an encoder from its last hidden states.
    fn embedded(&self, last: Tensor<3>, hidden: Vec<Tensor<3>>, padding: Tensor<2, Bool>) -> Outputs {
        let embed = |pooling: &Pooling| {
            let states = last.clone().cast(FloatDType::F32);
            match &self.dense {
                Some(dense) => pooling.apply_with(states, padding.clone(), |pooled| dense.forward(pooled)),
                None => pooling.apply(states, padding.clone()),
            }
        };
        let pooling = self.pooling.as_ref().filter(|_| !self.network.gives_classes_alone());
        Outputs {
            logits: self.classes(last.clone(), &padding),
            embedding: pooling.map(embed),
            hidden,
            padding: Some(padding),
            ..Outputs::default()
        }
    }
}

/// Returns the number of classes of a text classifier; `None` for other networks, and for a single score.
pub(crate) fn text_classes(network: &GraphNet) -> Option<usize> {
    (network.classifies_text() && network.output_width() > 1).then(|| network.output_width())
}

/// Returns all tokens of each window except the last: the inputs of next-token prediction.
fn inputs_of(tokens: &Tensor<2, Int>) -> Tensor<2, Int> {
    tokens.clone().narrow(1, 0, tokens.dims()[1] - 1)
}

/// Returns outputs with the next-token logits at every target, `[batch · n, vocabulary]`.
fn next_token_outputs(scores: Tensor<3>, hidden: Vec<Tensor<3>>) -> Outputs {
    Outputs { logits: Some(scores.cast(FloatDType::F32).flatten(0, 1)), hidden, ..Outputs::default() }
}

fn of_windows(network: &GraphNet, tokens: &Tensor<2, Int>, n_given: usize, wanted: Wanted) -> Outputs {
    let tokens = inputs_of(tokens);
    if !wanted.hidden || network.has_no_blocks() {
        let decoder = network.as_decoder();
        let scores = decoder.scores(targets_of(decoder.last_state(tokens), n_given));
        return next_token_outputs(scores, Vec::new());
    }
    let padding = no_padding(&tokens);
    let hidden = network.trace(&RunInputs::padded(tokens, padding), false).hidden;
    next_token_outputs(scores_of(network, hidden[hidden.len() - 1].clone(), n_given), hidden)
}

/// Returns the logits of a decoder at the targets, from the output of its last block.
fn scores_of(network: &GraphNet, state: Tensor<3>, n_given: usize) -> Tensor<3> {
    network.as_decoder().scores(targets_of(network.leave(state.into()).three(), n_given))
}

/// Returns the states `[batch, n, width]` that predict the tokens after the first `n_given`.
fn targets_of(states: Tensor<3>, n_given: usize) -> Tensor<3> {
    let n = states.dims()[1];
    states.narrow(1, n_given - 1, n + 1 - n_given)
}

/// Returns a mask without padding.
fn no_padding(tokens: &Tensor<2, Int>) -> Tensor<2, Bool> {
    Tensor::<2, Int>::zeros(tokens.dims(), &tokens.device()).greater_elem(0)
}

impl Layered for Learner {
    type Input = Inputs;

    fn n_layers(&self) -> usize {
        self.network.n_layers().unwrap_or(0)
    }

    fn enter(&self, input: &Inputs) -> Tensor<3> {
        self.network.enter(&run_inputs(input)).hidden()
    }

    fn layer(&self, index: usize, state: Tensor<3>, input: &Inputs) -> Tensor<3> {
        self.network.block(index, state.into(), &run_inputs(input)).hidden()
    }

    fn leave(&self, states: Vec<Tensor<3>>, input: &Inputs, wanted: Wanted) -> Outputs {
        match input {
            Inputs::Text(batch) => self.ended(states, batch.padding.clone(), wanted),
            Inputs::Windows { n_given, .. } => {
                let scores = scores_of(&self.network, states[states.len() - 1].clone(), *n_given);
                next_token_outputs(scores, if wanted.hidden { states } else { Vec::new() })
            }
            Inputs::Images(_) => panic!("not a network of layers"),
        }
    }
}

/// Returns what the first layer sees.
fn run_inputs(input: &Inputs) -> RunInputs {
    match input {
        Inputs::Text(batch) => batch.inputs(),
        Inputs::Windows { tokens, .. } => {
            let tokens = inputs_of(tokens);
            let padding = no_padding(&tokens);
            RunInputs::padded(tokens, padding)
        }
        Inputs::Images(_) => panic!("not a network of layers"),
    }
}

impl Traced for Learner {
    type Input = Inputs;

    fn outputs(&self, input: &Inputs, wanted: Wanted) -> Outputs {
        match input {
            Inputs::Text(batch) => self.of_text(batch, wanted),
            Inputs::Windows { tokens, n_given } => of_windows(&self.network, tokens, *n_given, wanted),
            Inputs::Images(images) => {
                let images = self.pixels.iter().fold(images.clone(), |images, map| map.apply(images));
                let images = match self.compute {
                    Some(dtype) => images.cast(dtype),
                    None => images,
                };
                Outputs { logits: Some(self.network.classify(images)), ..Outputs::default() }
            }
        }
    }

    fn sampled(&self, input: &Inputs, seed: u64) -> Result<Inputs> {
        let Inputs::Windows { tokens, .. } = input else {
            return Err(Error::config("only decoders sample text; remove it").at("on_policy"));
        };
        let length = tokens.dims()[1];
        let n_new = self.max_new_tokens.unwrap_or(length / 2).clamp(1, length - 1);
        let n_given = length - n_new;
        // As the output will run: masks and grids applied, in f32.
        let network = self.network.clone().materialize().single();
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        let prompts = tokens.clone().narrow(1, 0, n_given);
        let tokens = sample_tokens(network.as_decoder(), prompts, n_new, sampling)?;
        Ok(Inputs::Windows { tokens, n_given })
    }

    fn layered(&self) -> Option<&dyn Layered<Input = Inputs>> {
        self.network.n_layers().map(|_| self as _)
    }
}
