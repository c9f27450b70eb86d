//! The curvature of the loss in the rows of token embeddings.

use super::job::{CURVATURE, SolveJob, layer_of};
use briquette_core::{InputStats, Result};
use briquette_eval::layerwise::Room;
use briquette_eval::{Samples, row_curvatures};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::presence;
use briquette_models::Arch;
use briquette_models::data::{Data, DataSpec};
use briquette_writer::Plan;
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};

/// The most items that run backward.
const MAX_ITEMS: usize = 512;

/// The most bytes of hidden states in memory; the others are in a file until the blocks run backward.
const MAX_STATE_BYTES: u64 = 32 << 20;

/// Returns the statistics of the gradients at the outputs of these embeddings, by layer.
///
/// They are of the original model, and stored in the directory of finished blocks.
///
/// # Errors
/// See [`row_curvatures`].
pub(super) fn of_tables(
    job: &SolveJob,
    arch: Arch,
    device: &Device,
    plan: &Plan,
    tables: &[usize],
    over: (&Data, &DataSpec),
    room: Room,
) -> Result<BTreeMap<String, InputStats>> {
    let path = job.scratch.join(CURVATURE);
    let names: BTreeSet<String> = tables.iter().map(|&index| plan.tensors[index].info.name.to_string()).collect();
    let has_all = |layers: &BTreeMap<String, InputStats>| names.iter().all(|name| layers.contains_key(layer_of(name)));
    if presence::exists(&path)?
        && let Ok(done) = StatisticsFile::read(&path)
        && has_all(&done.layers)
    {
        return Ok(done.layers);
    }
    let Some(calibration) = &job.recipe.calibration else { return Ok(BTreeMap::new()) };
    let samples = Samples { n: calibration.n_samples.min(MAX_ITEMS), seed: calibration.seed };
    let room =
        Room { max_bytes: Some(room.max_bytes.map_or(MAX_STATE_BYTES, |most| most.min(MAX_STATE_BYTES))), ..room };
    job.options.progress.begin("gradients", 0);
    let mut after = |done, total| {
        job.options.progress.items(done, total);
        job.options.stop.check()
    };
    let found = row_curvatures(job.checkpoint, arch, device, over, (samples, room), &names, &mut after)?;
    StatisticsFile { layers: found.clone(), ..Default::default() }.write(&path)?;
    Ok(found)
}
