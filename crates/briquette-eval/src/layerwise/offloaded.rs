//! Runs a model that is larger than memory, block by block.

use super::{LayerwiseRunner, NetworkParts, Room};
use crate::likelihood::{Likelihood, nll_of_states, rows_of};
use crate::outputs::{ItemProgress, OutputRows, TextClasses};
use crate::run_outputs::RunOutputs;
use crate::samples::{RunBatch, Samples, no_item};
use crate::state_file::StateFile;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::data::{Data, DataSpec};
use briquette_models::graph_net::AnyTensor;
use briquette_models::{Arch, GraphNet, Input, ModelTask, device};
use burn::tensor::{Device, Tensor};
use std::time::Instant;

/// Returns the outputs of a model over data, block by block.
///
/// The weights of one block are in memory at a time.
///
/// Weights are floats. Inputs of layers are rounded if they are rounded where the layers run on codes. The whole data counts as one batch,
/// whose time is that of all blocks.
///
/// # Errors
/// - Config: the data is of another kind, or activations have fixed grids.
/// - Refused: outputs are not finite.
/// - Io: a tensor cannot be read, or hidden states cannot be stored.
pub fn run_offloaded(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    over: (&Data, &DataSpec),
    room: Room,
    kept: Option<&mut StateFile>,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    if checkpoint.static_weights().next().is_some() {
        let message =
            "memory.offload: found static int8 activations, which a run by block does not round; remove it (--offload)";
        return Err(Error::config(message));
    }
    let of_nodes = checkpoint.with_codes_of_nodes()?;
    let checkpoint = of_nodes.as_ref().unwrap_or(checkpoint);
    let classes = text_classes(checkpoint, arch, over, &room)?;
    let outputs = OffloadedOutputs { room, kept, classes, rounds_inputs: true };
    run_keeping_states(checkpoint, (arch, checkpoint), device, over, Samples::ALL, outputs, progress)
}

/// The outputs that a run by block gathers, and its room.
pub(crate) struct OffloadedOutputs<'a> {
    pub(crate) room: Room<'a>,
    /// Receives the hidden states of a decoder.
    pub(crate) kept: Option<&'a mut StateFile>,
    /// With classes, the outputs of a text classifier are logits instead of embeddings.
    pub(crate) classes: Option<TextClasses>,
    /// Whether layers round their inputs as they do on the codes of the checkpoint.
    pub(crate) rounds_inputs: bool,
}

/// Implements [`run_offloaded`] for some of the data, with the weights of a source for the checkpoint's
/// tensors.
///
/// # Errors
/// See [`run_offloaded`].
pub(crate) fn run_keeping_states(
    checkpoint: &Checkpoint,
    (arch, weights): (Arch, &dyn TensorSource),
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    samples: Samples,
    outputs: OffloadedOutputs,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    let OffloadedOutputs { room, kept, classes, rounds_inputs } = outputs;
    let mut input = room.input(arch, checkpoint)?;
    let batches = room.batches(arch, &mut input, (data, spec), samples)?;
    let since = Instant::now();
    let mut runner =
        LayerwiseRunner::begin_as_served(checkpoint, arch, device, batches, room, (weights, rounds_inputs))?;
    if runner.n_items() == 0 {
        return Err(no_item(spec));
    }
    let n_blocks = runner.n_blocks();
    while let Some(block) = runner.next_block() {
        let mut after = |done, total| progress(block * total + done, n_blocks * total);
        runner.advance(weights, &mut after)?;
    }
    match (arch.task(), &input) {
        (ModelTask::Decoder | ModelTask::EncoderDecoder, _) | (_, Input::Pair { .. }) => {
            likelihood(runner, weights, since, kept).map(RunOutputs::Likelihood)
        }
        (_, Input::Text { pooling, .. }) => match classes {
            Some(classes) => {
                let found = rows(runner, weights, since, |_, network, state| Ok(network.classes_of(state, None)))?;
                Ok(RunOutputs::Rows(classes.of_rows(found)))
            }
            None => rows(runner, weights, since, |batch, network, state| {
                let (_, padding) = batch.to_tensors(&network.device())?;
                Ok(pooling.apply(state.three(), padding).unsqueeze_dim(1))
            })
            .map(RunOutputs::Rows),
        },
        (_, Input::Images(_)) => {
            rows(runner, weights, since, |_, _, logits| Ok(logits.two().unsqueeze_dim(1))).map(RunOutputs::Rows)
        }
    }
}

/// Returns the classes of a text classifier's data; `None` for other models.
fn text_classes(
    checkpoint: &Checkpoint,
    arch: Arch,
    (data, spec): (&Data, &DataSpec),
    room: &Room,
) -> Result<Option<TextClasses>> {
    let Data::Sentences(sentences) = data else { return Ok(None) };
    let Input::Text { label_names, .. } = room.input(arch, checkpoint)? else { return Ok(None) };
    let (network, _) = GraphNet::blank(arch, checkpoint, &device("cpu")?)?;
    let found = network.classifies_text().then(|| TextClasses::of(sentences, &label_names, &network));
    found.transpose().map_err(|error| error.at(spec.path.display()))
}

/// Returns the outputs of each item, `[items, rows, width]` for a batch.
fn rows(
    mut runner: LayerwiseRunner,
    weights: &dyn TensorSource,
    since: Instant,
    output: impl Fn(&RunBatch, &GraphNet, AnyTensor) -> Result<Tensor<3>>,
) -> Result<OutputRows> {
    let (mut rows, n_items, n_skipped) = (Vec::new(), runner.n_items(), runner.n_skipped());
    runner.leave(weights, None, |batch, network, state| {
        let found = output(batch, network, state)?;
        let [_, n_rows, width] = found.dims();
        let values = briquette_nn::module::read_f32(found, "outputs")?;
        for (item, own) in batch.places.iter().zip(values.chunks(n_rows * width)) {
            rows.extend(own.chunks(width).map(|row| (*item, row.to_vec())));
        }
        Ok(())
    })?;
    OutputRows::of(rows, vec![since.elapsed().as_secs_f64() * 1e3], n_skipped, n_items)
}

fn likelihood(
    mut runner: LayerwiseRunner,
    weights: &dyn TensorSource,
    since: Instant,
    mut kept: Option<&mut StateFile>,
) -> Result<Likelihood> {
    let mut found = Likelihood { batch_size: runner.n_items(), ..Likelihood::default() };
    runner.leave(weights, None, |batch, network, state| {
        let (ids, _) = batch.to_tensors(&network.device())?;
        let n = batch.length() - 1;
        let state = state.three().narrow(1, 0, n);
        if let Some(kept) = kept.as_mut().filter(|kept| kept.has_room()) {
            kept.push(&rows_of(state.clone())?, n)?;
        }
        found.nll += nll_of_states(network.as_decoder(), state, ids.narrow(1, 1, n))?;
        found.n_tokens += batch.places.len() * (batch.length() - 1);
        Ok(())
    })?;
    found.batch_ms = vec![since.elapsed().as_secs_f64() * 1e3];
    match found.nll.is_finite() {
        true => Ok(found),
        false => Err(Error::refused("outputs are not finite; the weights are damaged")),
    }
}

/// Returns the largest size of weights that are in memory at a time, in bytes as f32.
///
/// This is the largest block, or the part before or after the blocks.
///
/// # Errors
/// Config and Input: the checkpoint does not match the architecture.
pub fn offloaded_bytes(checkpoint: &Checkpoint, arch: Arch, device: &Device) -> Result<u64> {
    let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
    Ok(NetworkParts::of(&network, &names).largest_bytes(checkpoint))
}
