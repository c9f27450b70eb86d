//! The sensitivity of a model's loss to errors of its weights, to second order.
//!
//! For an error `e` of a tensor's weights, the outputs change by `J·e`, and the loss increases by
//! `½·eᵀJᵀH·J·e`. `H` is the curvature of the loss in the outputs: of one minus the cosine with the original
//! embedding, or of the Kullback-Leibler divergence from the original distribution. Rounding to a step size `Δ`
//! acts as noise of variance `Δ²/12`, so the loss increases by `Δ²/24 · tr(JᵀHJ)`.
//!
//! The trace is the expected squared norm of the gradient of a random loss. This loss is that of a token or
//! class sampled by the model itself, or the product of an embedding with random signs. Samples of different
//! items are independent, so a batch's gradient samples the sum.
//!
//! Source: J. Martens, "New insights and perspectives on the natural gradient method", 2020; M. Hutchinson's
//! estimator of traces, 1989.

mod columns;
mod draws;
mod rows;
mod squares;

use crate::LayerwiseRunner;
use crate::layerwise::{Backwards, Room, backward};
use crate::outputs::ItemProgress;
use crate::samples::{RunBatch, Samples, no_item};
use briquette_core::{InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_models::data::{Data, DataSpec};
use briquette_models::graph_net::AnyTensor;
use briquette_models::text::Pooling;
use briquette_models::{Arch, GraphNet, Input, ModelTask, device};
use briquette_nn::{NameMap, Probe};
use burn::tensor::{Device, Gradients, Tensor};
use squares::GradientSquares;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The maximum number of logits in memory, with their gradients.
const MAX_SCORES: usize = 1 << 23;

/// The unit of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossUnit {
    /// One minus the cosine with the original embedding, per text.
    Cosine,
    /// The divergence from the original distribution, in nats per token, classified text or image.
    Nats,
    /// Half the squared error of the single score, per text or pair.
    SquaredError,
}

/// The traces of curvatures.
#[derive(Debug, Clone, PartialEq)]
pub struct Curvatures {
    /// `tr(JᵀHJ)` of each tensor, per item, by its name in files. Tensors that do not run have none.
    pub traces: BTreeMap<String, f64>,
    /// The unit of the losses.
    pub unit: LossUnit,
    /// The number of items that ran.
    pub n_items: usize,
}

/// Computes the curvature of a model's loss in the weights of each tensor.
///
/// It takes one forward and backward pass over data. The model runs block by block. The weights and
/// gradients of one block are in memory at a time. The hidden states between all blocks are in memory up to the
/// bound of `room`, and beyond it in a file.
///
/// # Errors
/// - Config: the data is of another kind than the model takes.
/// - Input: an item is damaged.
/// - Refused: gradients are not finite.
/// - Io: a tensor cannot be read.
pub fn curvatures(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, room): (Samples, Room),
    progress: ItemProgress,
) -> Result<Curvatures> {
    let (outputs, runner) = begun(checkpoint, arch, device, (data, spec), (samples, room))?;
    let n_items = if outputs.is_by_token() { runner.n_positions() } else { runner.n_items() };
    if n_items == 0 {
        return Err(no_item(spec));
    }
    let mut squares = GradientSquares::default();
    let see = &mut |network: &GraphNet, names: &NameMap, gradients: &Gradients| squares.add(network, names, gradients);
    let mut loss = RandomLoss { outputs, seed: samples.seed, see };
    backward(runner, checkpoint, room, &mut loss, progress)?;
    let unit = loss.outputs.unit();
    Ok(Curvatures { traces: squares.over(n_items)?, unit, n_items })
}

/// Computes statistics of the gradients at the outputs of token embeddings, by the name of the weight in files without
/// `.weight`.
///
/// The vectors are the gradients of the rows that a batch uses, for the same random loss as in [`curvatures`]. Their
/// Gram matrix is the curvature of the loss in the errors of a row, `Σ g gᵀ` over tokens: cross terms of different
/// items have the expectation 0. Embeddings that do not run have none.
///
/// # Errors
/// See [`curvatures`].
pub fn row_curvatures(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, room): (Samples, Room),
    wanted: &BTreeSet<String>,
    progress: ItemProgress,
) -> Result<BTreeMap<String, InputStats>> {
    let (outputs, runner) = begun(checkpoint, arch, device, (data, spec), (samples, room))?;
    let probe = Probe::with_gram();
    let see = &mut |network: &GraphNet, names: &NameMap, gradients: &Gradients| {
        rows::observe(&probe, wanted, network, names, gradients)
    };
    backward(runner, checkpoint, room, &mut RandomLoss { outputs, seed: samples.seed, see }, progress)?;
    Ok(probe.take_stats())
}

/// Adds the importance of each input of these layers, by the name of the weight in files without `.weight`; see
/// [`InputStats::importance`].
///
/// The random losses are those of [`curvatures`]. Layers that do not run get none.
///
/// # Errors
/// See [`curvatures`].
pub(crate) fn add_importance(
    layers: &mut BTreeMap<String, InputStats>,
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, room): (Samples, Room),
    progress: ItemProgress,
) -> Result<()> {
    let (outputs, runner) = begun(checkpoint, arch, device, (data, spec), (samples, room))?;
    let see = &mut |network: &GraphNet, names: &NameMap, gradients: &Gradients| {
        columns::add(layers, network, names, gradients)
    };
    backward(runner, checkpoint, room, &mut RandomLoss { outputs, seed: samples.seed, see }, progress)
}

/// Returns a run that is before the first block, and the outputs of its loss.
fn begun<'a>(
    checkpoint: &'a Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, room): (Samples, Room<'a>),
) -> Result<(LossOutputs, LayerwiseRunner<'a>)> {
    let mut input = room.input(arch, checkpoint)?;
    let batches = room.batches(arch, &mut input, (data, spec), samples)?;
    let outputs = LossOutputs::of(&input, arch, checkpoint)?;
    Ok((outputs, LayerwiseRunner::begin(checkpoint, arch, device, batches, room, checkpoint)?))
}

/// The outputs that a loss is computed of.
#[derive(Debug, Clone, PartialEq)]
enum LossOutputs {
    /// Embeddings of texts, with this pooling.
    Embeddings(Pooling),
    /// Logits of the next tokens.
    Tokens,
    /// Logits of the classes of texts, or of each of their tokens.
    TextClasses {
        /// Whether tokens have classes.
        of_tokens: bool,
    },
    /// The single score of texts.
    Scores,
    /// Logits of the classes of images.
    Classes,
}

impl LossOutputs {
    fn of(input: &Input, arch: Arch, checkpoint: &Checkpoint) -> Result<Self> {
        Ok(match (input, arch.task()) {
            (Input::Text { pooling, .. }, ModelTask::Encoder) => {
                let (network, _) = GraphNet::blank(arch, checkpoint, &device("cpu")?)?;
                match network.classifies_text() {
                    true if network.output_width() == 1 => Self::Scores,
                    true => Self::TextClasses { of_tokens: network.classifies_tokens() },
                    false => Self::Embeddings(pooling.clone()),
                }
            }
            (Input::Text { .. } | Input::Pair { .. }, _) => Self::Tokens,
            (Input::Images(_), _) => Self::Classes,
        })
    }

    fn unit(&self) -> LossUnit {
        match self {
            Self::Embeddings(_) => LossUnit::Cosine,
            Self::Scores => LossUnit::SquaredError,
            Self::Tokens | Self::TextClasses { .. } | Self::Classes => LossUnit::Nats,
        }
    }

    /// Whether each token has outputs of its own.
    fn is_by_token(&self) -> bool {
        matches!(self, Self::Tokens | Self::TextClasses { of_tokens: true })
    }
}

/// Receives the gradients of a network's parameters.
type SeeGradients<'s> = &'s mut dyn FnMut(&GraphNet, &NameMap, &Gradients) -> Result<()>;

/// The random loss of a model.
struct RandomLoss<'s> {
    outputs: LossOutputs,
    seed: u64,
    see: SeeGradients<'s>,
}

impl Backwards for RandomLoss<'_> {
    fn parts(&self, network: &GraphNet, length: usize) -> Vec<Range<usize>> {
        let step = match self.outputs {
            LossOutputs::Tokens => (MAX_SCORES / network.as_decoder().vocab_size().max(1)).max(1),
            _ => length,
        };
        (0..length).step_by(step.max(1)).map(|start| start..length.min(start + step)).collect()
    }

    fn loss(&self, network: &GraphNet, left: AnyTensor, batch: &RunBatch, tokens: Range<usize>) -> Result<Tensor<1>> {
        let seed = self.seed ^ batch.places.first().map_or(0, |&place| place as u64 + 1);
        match &self.outputs {
            LossOutputs::Embeddings(pooling) => {
                let left = left.three();
                let (_, padding) = batch.to_tensors(&left.device())?;
                Ok(draws::of_embeddings(pooling.apply(left, padding), seed))
            }
            LossOutputs::Tokens => {
                let scores = network.as_decoder().scores(left.three());
                let [n, length, width] = scores.dims();
                draws::of_scores(scores.reshape([n * length, width]), seed ^ (tokens.start as u64) << 32)
            }
            LossOutputs::TextClasses { .. } => {
                let logits = network.classes_of(left, None);
                let [n, n_rows, width] = logits.dims();
                draws::of_scores(logits.reshape([n * n_rows, width]), seed)
            }
            LossOutputs::Scores => Ok(draws::of_values(network.classes_of(left, None).flatten(1, 2), seed)),
            LossOutputs::Classes => draws::of_scores(left.two(), seed),
        }
    }

    fn see(&mut self, network: &GraphNet, names: &NameMap, gradients: &Gradients) -> Result<()> {
        (self.see)(network, names, gradients)
    }
}
