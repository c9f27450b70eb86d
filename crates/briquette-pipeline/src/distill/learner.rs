//! The networks of `briquette-models` as students and teachers.

use briquette_distill::{Outputs, Traced, Wanted};
use briquette_models::bert::Trace;
use briquette_models::text::Pooling;
use briquette_models::{Input, LoadedModel, Network};
use burn::module::Module;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

/// A network, and how its states become an embedding.
#[derive(Module, Debug)]
pub(super) struct Learner {
    pub(super) network: Network,
    #[module(skip)]
    pooling: Option<Pooling>,
    #[module(skip)]
    compute: Option<FloatDType>,
}

/// What a network takes in.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one a batch, on its way to the network")]
pub(super) enum Inputs {
    /// Tokens and their padding, `[batch, length]`.
    Text(Tensor<2, Int>, Tensor<2, Bool>),
    /// Tokens of running text, `[batch, length]`: from all but the last of each row, all but the first are told.
    Windows(Tensor<2, Int>),
    /// Images, `[batch, channels, height, width]`.
    Images(Tensor<4>),
}

impl Learner {
    /// Of a model. `compute` is the type its parameters are handed out in.
    pub(super) fn of(model: &LoadedModel, compute: Option<FloatDType>) -> Self {
        let pooling = match &model.input {
            Input::Text { pooling, .. } => Some(*pooling),
            Input::Images(_) => None,
        };
        Self { network: model.network.clone(), pooling, compute }
    }

    fn of_text(&self, tokens: &Tensor<2, Int>, padding: &Tensor<2, Bool>, wanted: Wanted) -> Outputs {
        let Network::Bert(bert) = &self.network else { panic!("not an encoder") };
        let (tokens, padding) = (tokens.clone(), padding.clone());
        let Trace { hidden, attention, values } = match wanted.is_end_only() {
            true => Trace { hidden: vec![bert.forward(tokens, padding.clone())], ..Trace::default() },
            false => bert.trace(tokens, padding.clone(), wanted.attention || wanted.values),
        };
        let last = hidden.last().cloned();
        let embed = |pooling: Pooling| Some(pooling.apply(last?.cast(FloatDType::F32), padding.clone()));
        Outputs {
            embedding: self.pooling.and_then(embed),
            hidden: if wanted.hidden { hidden } else { Vec::new() },
            attention: if wanted.attention { attention } else { Vec::new() },
            values: if wanted.values { values } else { Vec::new() },
            padding: Some(padding),
            logits: None,
        }
    }
}

/// Scores of the next token at every place but the last, `[batch (length - 1), vocabulary]`.
fn of_windows(network: &Network, tokens: &Tensor<2, Int>, wanted: Wanted) -> Outputs {
    let Network::Llama(llama) = network else { panic!("not a decoder") };
    let [_, length] = tokens.dims();
    let known = tokens.clone().narrow(1, 0, length - 1);
    let (hidden, scores) = if wanted.hidden { llama.trace(known) } else { (Vec::new(), llama.forward(known)) };
    Outputs { logits: Some(scores.cast(FloatDType::F32).flatten(0, 1)), hidden, ..Outputs::default() }
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
}
