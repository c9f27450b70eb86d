//! Refits of the layers around removed blocks, so that they take up what the blocks did.
//!
//! The original network and the network without the blocks run side by side over the calibration data, block by block.

use crate::transform::network::Network;
use briquette_core::Result;
use briquette_graph::Graph;
use std::collections::BTreeMap;

/// Returns new weights of the last linear layer of each block from the first gap on, by the name of its weight in the original network.
///
/// With the layer's inputs `X` in the network without the blocks, and `E` what the output of its block lacks of the original hidden states
/// there, or after the gap that follows, the weights become `W + [(XᵀX + 0.5·mean(diag)·I)⁻¹ XᵀE]ᵀ`. If a norm follows the layer, each row of `X` is divided
/// by what the norm divides by, and `E` by the weight of the norm. Blocks whose output is no sum of a linear layer and the residual stream stay.
///
/// # Errors
/// - Config: the data is of another kind than the network takes, or this build cannot run models.
/// - Input and Io: the data or a tensor cannot be read.
/// - Refused: a value is not finite, or the memory limit is exceeded.
/// - Interrupted: a stop was requested.
pub(super) fn refitted(network: &Network, graph: &Graph, dropped: &[usize]) -> Result<BTreeMap<String, Vec<f32>>> {
    run::refitted(network, graph, dropped)
}

#[cfg(not(feature = "model"))]
mod run {
    use super::*;
    use briquette_core::Error;

    pub(super) fn refitted(_: &Network, _: &Graph, _: &[usize]) -> Result<BTreeMap<String, Vec<f32>>> {
        Err(Error::lacks_feature("model", "run models").at("calibration.data"))
    }
}

#[cfg(feature = "model")]
mod run {
    use super::*;
    use crate::arch::arch_of;
    use crate::memory::{limit_of_host, run_model};
    use crate::training::spec_of;
    use crate::transform::changed::{ChangedModel, OutputTensor};
    use crate::transform::shrink::inputs::transposed;
    use briquette_core::{Error, OutputAxis, rows};
    use briquette_eval::layerwise::{GapInputs, Room};
    use briquette_eval::samples::run_batches;
    use briquette_eval::{LayerwiseRunner, Samples};
    use briquette_formats::{Checkpoint, TensorSource};
    use briquette_methods::reconstruct::{CrossInputs, correct};
    use std::collections::BTreeSet;

    /// New weights by the index of their tensor.
    type NewWeights = BTreeMap<usize, Vec<f32>>;

    pub(super) fn refitted(network: &Network, graph: &Graph, dropped: &[usize]) -> Result<BTreeMap<String, Vec<f32>>> {
        let Network { checkpoint, options, .. } = *network;
        let Some(calibration) = &network.recipe.calibration else { return Ok(BTreeMap::new()) };
        let device = briquette_models::device(&options.device)?;
        let arch = arch_of(calibration.arch.as_deref(), checkpoint)?;
        let spec = spec_of(&calibration.data);
        let host_limit = limit_of_host(calibration.limit, options);
        let data = spec.open_within(arch.task(), host_limit)?;
        let samples = Samples { n: calibration.n_samples, seed: calibration.seed };
        let room = Room::within(host_limit, network.scratch);
        options.progress.begin("refit", 0);
        let found = run_model(options, calibration.limit, &device, || {
            let batches = run_batches(arch, &mut arch.input(checkpoint)?, &data, &spec, samples)?;
            let runner = || LayerwiseRunner::begin(checkpoint, arch, &device, batches.clone(), room, checkpoint);
            let dropped: BTreeSet<usize> = dropped.iter().copied().collect();
            GapRuns { network, graph, original: runner()?, smaller: runner()?, dropped }.run()
        })?;
        Ok(found.into_iter().map(|(index, values)| (checkpoint.tensors()[index].name.to_string(), values)).collect())
    }

    /// The run of the original network, and the run without the dropped blocks.
    struct GapRuns<'r> {
        network: &'r Network<'r>,
        graph: &'r Graph,
        original: LayerwiseRunner<'r>,
        smaller: LayerwiseRunner<'r>,
        dropped: BTreeSet<usize>,
    }

    impl GapRuns<'_> {
        fn run(mut self) -> Result<NewWeights> {
            let (checkpoint, options) = (self.network.checkpoint, self.network.options);
            let n_blocks = self.original.n_blocks();
            let n_passes = 3 * n_blocks * self.original.n_batches();
            let mut n_done = 0;
            let mut after = |_, _| {
                n_done += 1;
                options.progress.items(n_done.min(n_passes), n_passes);
                options.stop.check()
            };
            let mut found = NewWeights::new();
            while let Some(block) = self.smaller.next_block() {
                self.original.advance(checkpoint, &mut after)?;
                if self.dropped.contains(&block) {
                    self.smaller.skip();
                    continue;
                }
                // Before the first gap, the networks are equal.
                let mut differs = self.dropped.first().is_some_and(|first| *first < block);
                while self.original.next_block().is_some_and(|next| self.dropped.contains(&next)) {
                    self.original.advance(checkpoint, &mut after)?;
                    differs = true;
                }
                if differs {
                    let seen = self.smaller.observe_gap(&self.original, checkpoint, &mut after)?;
                    found.extend(seen.map(|seen| refit(checkpoint, self.graph, &seen, options)).transpose()?.flatten());
                }
                self.smaller.advance(&overlaid(checkpoint, &found), &mut after)?;
                // The original run is after the gap already.
                let after_gap = self.original.next_block().unwrap_or(n_blocks);
                while self.smaller.next_block().is_some_and(|next| next < after_gap) {
                    self.smaller.skip();
                }
            }
            Ok(found)
        }
    }

    /// Returns the tensor and new weights of a layer; `None` if there is no solution.
    fn refit(
        checkpoint: &Checkpoint,
        graph: &Graph,
        seen: &GapInputs,
        options: &briquette_writer::RunOptions,
    ) -> Result<Option<(usize, Vec<f32>)>> {
        let is_weight = |name: &str| name.strip_suffix(".weight") == Some(seen.layer.as_str());
        let index = checkpoint.tensors().iter().position(|info| is_weight(&info.name));
        let index = index.ok_or_else(|| Error::bug("a layer without a tensor").at(&seen.layer))?;
        let info = &checkpoint.tensors()[index];
        let n = seen.stats.n_inputs();
        let Some(gram) = &seen.stats.gram else { return Ok(None) };
        // Weights of GPT-2 are stored [in, out].
        let layout = graph.weight(&info.name).map(|weight| graph.weights[weight.0].layout);
        let is_by_input = layout == Some(OutputAxis::Last);
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes)?;
        let mut values = vec![0.0; info.n_elements()];
        rows::to_f32(&bytes, info.dtype, &mut values);
        if is_by_input {
            values = transposed(&values, n);
        }
        // The layer's inputs are the same in both networks: only the output lacks something.
        let inputs = CrossInputs { gram, cross: gram, added: Some(&seen.lacking) };
        let is_moved = correct(&mut values, n, inputs, &|| options.stop.check())?;
        if is_by_input {
            let n_outputs = values.len() / n.max(1);
            values = transposed(&values, n_outputs);
        }
        Ok((is_moved && values.iter().all(|&value| rows::fits(value, info.dtype))).then_some((index, values)))
    }

    /// Returns a checkpoint with other weights.
    fn overlaid<'c>(checkpoint: &'c Checkpoint, weights: &NewWeights) -> ChangedModel<'c> {
        let tensor = |index: usize| match weights.get(&index) {
            Some(values) => OutputTensor::Made(values.clone()),
            None => OutputTensor::Copied(index),
        };
        let tensors = (0..checkpoint.tensors().len()).map(tensor).collect();
        ChangedModel { checkpoint, infos: checkpoint.tensors().to_vec(), tensors }
    }
}
