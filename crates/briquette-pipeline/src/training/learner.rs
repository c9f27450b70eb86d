//! Adapts the networks of `briquette-models` as students and teachers.

use briquette_distill::{Layered, Outputs, Traced, Wanted};
use briquette_models::NetworkTrace;
use briquette_models::graph_net::RunInputs;
use briquette_models::text::Pooling;
use briquette_models::{GraphNet, Input, LoadedModel};
use burn::module::Module;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

/// A network, and the pooling of its hidden states.
#[derive(Module, Debug)]
pub(crate) struct Learner {
    pub(crate) network: GraphNet,
    #[module(skip)]
    pooling: Option<Pooling>,
    #[module(skip)]
    compute: Option<FloatDType>,
}

/// The input of a network.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a batch, on its way to the network")]
pub(crate) enum Inputs {
    /// Tokens and their padding mask, `[batch, length]`.
    Text(Tensor<2, Int>, Tensor<2, Bool>),
    /// Tokens of running text, `[batch, length]`.
    ///
    /// The inputs are all but the last token of each row, the targets all but the first.
    Windows(Tensor<2, Int>),
    /// Images, `[batch, channels, height, width]`.
    Images(Tensor<4>),
}

impl Learner {
    /// Creates a learner from a model. `compute` is the type in which its parameters are used.
    pub(crate) fn of(model: &LoadedModel, compute: Option<FloatDType>) -> Self {
        let pooling = match &model.input {
            Input::Text { pooling, .. } => Some(*pooling),
            Input::Images(_) | Input::Pair { .. } => None,
        };
        Self { network: model.network.clone(), pooling, compute }
    }

    fn of_text(&self, tokens: &Tensor<2, Int>, padding: &Tensor<2, Bool>, wanted: Wanted) -> Outputs {
        let (tokens, padding) = (tokens.clone(), padding.clone());
        if wanted.is_end_only() {
            return self.embedded(vec![self.network.encode(tokens, padding.clone())], padding, wanted);
        }
        let NetworkTrace { hidden, attention, values } =
            self.network.trace(tokens, padding.clone(), wanted.attention || wanted.values);
        let attention = if wanted.attention { attention } else { Vec::new() };
        let values = if wanted.values { values } else { Vec::new() };
        Outputs { attention, values, ..self.embedded(hidden, padding, wanted) }
    }

    /// Returns the outputs of an encoder from its hidden states. At least the last one must be present.
    fn embedded(&self, hidden: Vec<Tensor<3>>, padding: Tensor<2, Bool>, wanted: Wanted) -> Outputs {
        let last = hidden.last().cloned();
        let embed = |pooling: Pooling| Some(pooling.apply(last?.cast(FloatDType::F32), padding.clone()));
        Outputs {
            embedding: self.pooling.and_then(embed),
            hidden: if wanted.hidden { hidden } else { Vec::new() },
            padding: Some(padding),
            ..Outputs::default()
        }
    }
}

/// Returns all tokens of each window except the last: the inputs of next-token prediction.
fn inputs_of(tokens: &Tensor<2, Int>) -> Tensor<2, Int> {
    tokens.clone().narrow(1, 0, tokens.dims()[1] - 1)
}

/// Returns outputs with the next-token logits at every position, `[batch (length - 1), vocabulary]`.
fn next_token_outputs(scores: Tensor<3>, hidden: Vec<Tensor<3>>) -> Outputs {
    Outputs { logits: Some(scores.cast(FloatDType::F32).flatten(0, 1)), hidden, ..Outputs::default() }
}

fn of_windows(network: &GraphNet, tokens: &Tensor<2, Int>, wanted: Wanted) -> Outputs {
    let tokens = inputs_of(tokens);
    if !wanted.hidden {
        return next_token_outputs(network.decode(tokens), Vec::new());
    }
    let padding = no_padding(&tokens);
    let hidden = network.trace(tokens, padding, false).hidden;
    next_token_outputs(scores_of(network, hidden[hidden.len() - 1].clone()), hidden)
}

/// Returns the logits of a decoder from the output of its last block.
fn scores_of(network: &GraphNet, state: Tensor<3>) -> Tensor<3> {
    let blocks = network.as_blocks().expect("a network of layers");
    network.as_decoder().scores(blocks.leave(state.into()).three())
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
        let blocks = self.network.as_blocks().expect("a network of layers");
        let (tokens, padding) = tokens_of(input);
        blocks.enter(&RunInputs::padded(tokens, padding)).hidden()
    }

    fn layer(&self, index: usize, state: Tensor<3>, input: &Inputs) -> Tensor<3> {
        let blocks = self.network.as_blocks().expect("a network of layers");
        let (tokens, padding) = tokens_of(input);
        blocks.block(index, state.into(), &RunInputs::padded(tokens, padding)).hidden()
    }

    fn leave(&self, states: Vec<Tensor<3>>, input: &Inputs, wanted: Wanted) -> Outputs {
        match input {
            Inputs::Text(_, padding) => self.embedded(states, padding.clone(), wanted),
            Inputs::Windows(_) => {
                let scores = scores_of(&self.network, states[states.len() - 1].clone());
                next_token_outputs(scores, if wanted.hidden { states } else { Vec::new() })
            }
            Inputs::Images(_) => panic!("not a network of layers"),
        }
    }
}

/// Returns the tokens that the first layer sees, and their padding.
fn tokens_of(input: &Inputs) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    match input {
        Inputs::Text(tokens, padding) => (tokens.clone(), padding.clone()),
        Inputs::Windows(tokens) => {
            let tokens = inputs_of(tokens);
            let padding = no_padding(&tokens);
            (tokens, padding)
        }
        Inputs::Images(_) => panic!("not a network of layers"),
    }
}

impl Traced for Learner {
    type Input = Inputs;

    fn outputs(&self, input: &Inputs, wanted: Wanted) -> Outputs {
        match input {
            Inputs::Text(tokens, padding) => self.of_text(tokens, padding, wanted),
            Inputs::Windows(tokens) => of_windows(&self.network, tokens, wanted),
            Inputs::Images(images) => {
                let images = match self.compute {
                    Some(dtype) => images.clone().cast(dtype),
                    None => images.clone(),
                };
                Outputs { logits: Some(self.network.classify(images)), ..Outputs::default() }
            }
        }
    }

    fn layered(&self) -> Option<&dyn Layered<Input = Inputs>> {
        self.network.n_layers().map(|_| self as _)
    }
}
