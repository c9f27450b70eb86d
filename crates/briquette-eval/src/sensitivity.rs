//! What a model loses by errors of its weights, to second order.
//!
//! Near the model as it is, what it puts out changes by `J·e` for an error `e` of the weights of a tensor, and what is lost is `½·eᵀJᵀH·J·e`, with `H`
//! the curvature of the loss in the outputs: one less the cosine with the embedding as it was, or the Kullback-Leibler divergence from the
//! scores as they were. Rounding to a step `Δ` is as good as noise of variance `Δ²/12`, so that the loss is `Δ²/24 · tr(JᵀHJ)`. The trace is the
//! expected square norm of the gradient of a random loss: that of a token, or class, drawn by the model itself; of an embedding, its product
//! with random signs. Draws of different items do not depend on each other, so that a batch's gradient is a sample of the sum.
//! Source: J. Martens, "New insights and perspectives on the natural gradient method", 2020; M. Hutchinson's estimator of traces, 1989.

mod draws;
mod squares;

use crate::LayerwiseRunner;
use crate::images::{images_of, pixels_of};
use crate::layerwise::{Backwards, Room, backward};
use crate::outputs::ItemProgress;
use crate::samples::{BATCH_SIZE, Samples, TokenBatch, token_batches};
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec};
use briquette_models::text::Pooling;
use briquette_models::{Arch, Input, LoadedModel, ModelTask, Network, still};
use briquette_nn::NameMap;
use burn::tensor::{Device, Gradients, Tensor};
use squares::GradientSquares;
use std::collections::BTreeMap;
use std::ops::Range;

/// Scores of tokens in memory at once, with their gradients.
const MAX_SCORES: usize = 1 << 23;

/// What a loss is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossUnit {
    /// One less the cosine with the embedding as it was, a text.
    Cosine,
    /// The divergence from the scores as they were, in nats a token or image.
    Nats,
}

/// The traces of curvatures.
#[derive(Debug, Clone, PartialEq)]
pub struct Curvatures {
    /// `tr(JᵀHJ)` of each tensor, an item, by its name in files; of those that nothing runs there is none.
    pub traces: BTreeMap<String, f64>,
    /// What losses by them are counted in.
    pub unit: LossUnit,
    /// Items that ran.
    pub n_items: usize,
}

/// Finds the curvatures of a model's loss in the weights of each of its tensors, by one pass over some data, and back.
///
/// A model of text goes block by block: the weights of one block are in memory at a time, its gradients, and the states between all blocks, beyond
/// what `room` has in a file.
///
/// # Errors
/// Config where the data is of another kind than the model takes; Input where items are damaged; Refused where gradients are not finite; those of
/// reading.
pub fn curvatures(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, room): (Samples, Room),
    progress: ItemProgress,
) -> Result<Curvatures> {
    let mut input = arch.input(checkpoint)?;
    let Some(batches) = token_batches(arch, &mut input, data, spec, samples)? else {
        return of_images(checkpoint, arch, device, (data, spec), samples, progress);
    };
    let pooling = match (&input, arch.task()) {
        (Input::Text { pooling, .. }, ModelTask::Encoder) => Some(*pooling),
        _ => None,
    };
    let n_items = match pooling {
        Some(_) => batches.iter().map(|batch| batch.places.len()).sum(),
        None => batches.iter().map(|batch| batch.ids.len()).sum(),
    };
    let walk = LayerwiseRunner::begin(checkpoint, arch, device, batches, room, checkpoint)?;
    let walk = walk.ok_or_else(|| Error::bug("a network of text without blocks"))?;
    let mut found = OfText { pooling, seed: samples.seed, squares: GradientSquares::default() };
    backward(walk, checkpoint, room, &mut found, progress)?;
    let unit = if pooling.is_some() { LossUnit::Cosine } else { LossUnit::Nats };
    Ok(Curvatures { traces: found.squares.over(n_items)?, unit, n_items })
}

/// Of a model of text.
struct OfText {
    /// Of an encoder.
    pooling: Option<Pooling>,
    seed: u64,
    squares: GradientSquares,
}

impl Backwards for OfText {
    fn parts(&self, network: &Network, length: usize) -> Vec<Range<usize>> {
        let step = match self.pooling {
            Some(_) => length,
            None => (MAX_SCORES / network.as_decoder().vocab_size().max(1)).max(1),
        };
        (0..length).step_by(step.max(1)).map(|start| start..length.min(start + step)).collect()
    }

    fn loss(&self, network: &Network, left: Tensor<3>, batch: &TokenBatch, tokens: Range<usize>) -> Result<Tensor<1>> {
        let seed = self.seed ^ batch.places.first().map_or(0, |&place| place as u64 + 1);
        match self.pooling {
            Some(pooling) => {
                let (_, padding) = batch.to_tensors(&left.device());
                Ok(draws::of_embeddings(pooling.apply(left, padding), seed))
            }
            None => {
                let scores = network.as_decoder().scores(left);
                let [n, length, width] = scores.dims();
                draws::of_scores(scores.reshape([n * length, width]), seed ^ (tokens.start as u64) << 32)
            }
        }
    }

    fn see(&mut self, network: &Network, names: &NameMap, gradients: &Gradients) -> Result<()> {
        self.squares.add(network, names, gradients)
    }
}

/// The same of a model of images, with all of its weights in memory.
fn of_images(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    samples: Samples,
    progress: ItemProgress,
) -> Result<Curvatures> {
    let model = LoadedModel::load(checkpoint, Some(arch), &device.clone().autodiff())?;
    let model = LoadedModel { network: still(model.network.clone()), ..model };
    let (images, input) = images_of(arch, &model.input, (data, spec))?;
    let (mut squares, mut n_items) = (GradientSquares::default(), 0);
    let chosen = samples.of(images.len())?;
    for (index, batch) in chosen.chunks(BATCH_SIZE).enumerate() {
        let (_, pixels) = pixels_of(images, batch, &input, spec.strict)?;
        if !pixels.is_empty() {
            let scores = model.classify(stacked(&pixels, images.extents(&input)?, &device.clone().autodiff()));
            let gradients = draws::of_scores(scores, samples.seed ^ index as u64)?.backward();
            squares.add(&model.network, &model.names, &gradients)?;
        }
        n_items += pixels.len();
        progress(n_items, chosen.len())?;
    }
    if n_items == 0 {
        return Err(Error::input("nothing in it can be run; the model saw no input").at(spec.path.display()));
    }
    Ok(Curvatures { traces: squares.over(n_items)?, unit: LossUnit::Nats, n_items })
}
