//! Runs a model once over data to gather input statistics of each layer.

use crate::report::CalibrationReport;
use briquette_core::{Error, Result};
use briquette_formats::Choice;
use briquette_recipe::raw::{RawData, RawMemory};
use briquette_writer::context::RunOptions;
use std::path::PathBuf;

/// A calibration: the model, the data and the output file.
#[derive(Debug, Clone, Default)]
pub struct CalibrationRequest {
    /// The model.
    pub model: PathBuf,
    /// The entry of the file that is the model.
    pub choice: Choice,
    /// The architecture, if the files do not determine it.
    pub arch: Option<String>,
    /// The data, under `eval`.
    pub data: RawData,
    /// The maximum number of items to run.
    pub n_samples: usize,
    /// The seed of the sample.
    pub seed: u64,
    /// Whether to gather Gram matrices too.
    pub has_gram: bool,
    /// Whether to gather the importance of each input too, by a backward pass.
    pub has_gradients: bool,
    /// The memory limit, and whether to keep only one block's weights in memory.
    pub memory: RawMemory,
    /// The file to write.
    pub output: PathBuf,
}

/// Runs a model over data and writes input statistics of its layers, with the model's fingerprint.
///
/// An existing file is replaced only with `force`.
///
/// # Errors
/// - Config: the device is unknown, or the data is of another kind.
/// - Input: the data or the model is damaged.
/// - Refused: the output exists or is in the model's directory, or an input is not finite.
/// - Io: a file cannot be read or written.
#[cfg(feature = "model")]
pub fn calibrate(request: &CalibrationRequest, options: &RunOptions) -> Result<CalibrationReport> {
    run::calibrate(request, options).map_err(crate::unwritten::unwritten)
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
pub fn calibrate(_request: &CalibrationRequest, _options: &RunOptions) -> Result<CalibrationReport> {
    Err(Error::lacks_feature("model", "run models"))
}

#[cfg(feature = "model")]
mod run {
    use super::*;
    use crate::arch::arch_of;
    use crate::memory;
    use crate::output_file::{OutputFile, parent_of};
    use crate::report::CalibratedLayer;
    use crate::training::spec_of;
    use briquette_eval::layerwise::Room;
    use briquette_eval::{Calibration, Gathering, Samples};
    use briquette_formats::input_stats::{StatisticsFile, fingerprint};
    use briquette_formats::{Checkpoint, draft};
    use std::collections::BTreeSet;
    use std::path::Path;

    pub(super) fn calibrate(request: &CalibrationRequest, options: &RunOptions) -> Result<CalibrationReport> {
        let device = briquette_models::device(&options.device)?;
        let checkpoint = Checkpoint::open_as(&request.model, &request.choice)?;
        request.choice.check_used(&[&checkpoint])?;
        let read: Vec<&Path> =
            [&request.data.eval, &request.data.labels].into_iter().flatten().map(PathBuf::as_path).collect();
        OutputFile::Statistics.check(&request.output, &checkpoint, &read, options.force)?;
        let arch = arch_of(request.arch.as_deref(), &checkpoint)?;
        let limit = request.memory.limit_bytes()?;
        limit.map_or(Ok(()), |limit| memory::to_calibrate(&checkpoint, Some(arch), &device)?.check(limit))?;
        let spec = spec_of(&request.data);
        let data = spec.open_within(arch.task(), memory::limit_of_host(limit, options))?;
        // The scratch file is created beside the output.
        let _parents = draft::ParentDirectories::create(&request.output)?;
        let samples = Samples { n: request.n_samples, seed: request.seed };
        options.progress.begin("calibrate", 0);
        let mut after_batch = |done, total| {
            options.progress.items(done, total);
            options.stop.check()
        };
        let found = memory::run_model(options, limit, &device, || {
            let room = Room::within(memory::limit_of_host(limit, options), parent_of(&request.output));
            let gathering =
                Gathering { samples, has_gram: request.has_gram, has_gradients: request.has_gradients, room };
            briquette_eval::calibrate(&checkpoint, arch, &device, (&data, &spec), gathering, &mut after_batch)
        })?;
        let (layers, block_influence) = (found.layers.clone(), found.block_influence.clone());
        let file = StatisticsFile { model: Some(fingerprint(&checkpoint)?), layers, block_influence };
        checkpoint.check_unchanged()?;
        if options.force { file.write(&request.output) } else { file.write_new(&request.output) }?;
        let n_bytes = std::fs::metadata(&request.output)
            .map_err(|source| Error::io("cannot look at", &request.output, source))?
            .len();
        let device = briquette_models::device_name(&device);
        Ok(report(request, found, &arch.to_string(), device, n_bytes))
    }

    fn report(
        request: &CalibrationRequest,
        found: Calibration,
        arch: &str,
        device: String,
        n_bytes: u64,
    ) -> CalibrationReport {
        let few: BTreeSet<String> = found.few().into_iter().map(|(name, _)| name.to_string()).collect();
        let layer = |(name, stats): (String, briquette_core::InputStats)| CalibratedLayer {
            n_inputs: stats.n_inputs(),
            n_vectors: stats.count,
            is_few: few.contains(&name),
            name,
        };
        CalibrationReport {
            model: request.model.display().to_string(),
            arch: arch.into(),
            device,
            data: request.data.eval.as_deref().unwrap_or(Path::new("")).display().to_string(),
            n_items: found.n_items,
            n_skipped: found.n_skipped,
            layers: found.layers.into_iter().map(layer).collect(),
            unseen: found.unseen,
            output: request.output.display().to_string(),
            n_bytes,
        }
    }
}
