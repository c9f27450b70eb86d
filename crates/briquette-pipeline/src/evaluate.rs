//! Measures the quality, latency and memory of a model and its reference.

use crate::report::EvaluationReport;
use briquette_core::Result;
use briquette_recipe::Evaluate;
use briquette_writer::context::RunOptions;
use std::path::Path;

/// Runs `model`, and `reference` if given, and compares them.
///
/// # Errors
/// - Config: the device is unknown, or the data is of another kind.
/// - Input: the data or a model is damaged.
/// - Refused: the memory limit is exceeded, or outputs are not finite.
/// - Io: a file cannot be read.
#[cfg(feature = "model")]
pub fn evaluate(
    stage: &Evaluate,
    model: &Path,
    reference: Option<&Path>,
    options: &RunOptions,
) -> Result<EvaluationReport> {
    run::evaluate(stage, model, reference, options)
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
pub fn evaluate(
    _stage: &Evaluate,
    _model: &Path,
    _reference: Option<&Path>,
    _options: &RunOptions,
) -> Result<EvaluationReport> {
    Err(briquette_core::Error::lacks_feature("model", "run models"))
}

#[cfg(feature = "model")]
mod run {
    use super::*;
    use crate::memory;
    use crate::report::{ContinuationFigures, HeldFigures, MemoryFigures, RunFigures};
    use crate::training::{half, spec_of};
    use briquette_core::memory::MemoryMeter;
    use briquette_core::{Error, shown_path};
    use briquette_eval::{Evaluation, Fits, Latency, PROMPT, Request};
    use briquette_models::batches::Batching;
    use briquette_models::memory::Device;
    use briquette_models::memory::{Memory, device_meters};
    use briquette_models::{Arch, Held};
    use briquette_recipe::BatchSize;
    use std::collections::BTreeMap;

    /// The maximum batch size when the batch size is automatic.
    const LARGEST_BATCH: usize = 256;

    pub(super) fn evaluate(
        stage: &Evaluate,
        model: &Path,
        reference: Option<&Path>,
        options: &RunOptions,
    ) -> Result<EvaluationReport> {
        let device = briquette_models::device(&options.device)?;
        let request = request_of(stage, model, reference, device.clone())?;
        let of_device = device_meters(&device);
        let meters: Vec<&dyn MemoryMeter> = [options.meter.as_ref() as &dyn MemoryMeter]
            .into_iter()
            .chain(of_device.iter().map(|meter| meter.as_ref() as &dyn MemoryMeter))
            .collect();
        options.progress.runs_on(device_meters(&device));
        options.progress.begin("evaluate", 0);
        let found = measured((stage, &request), &meters, options)?;
        let before =
            found.reference_latency.map(|latency| figures(&latency, found.reference_memory, found.reference_held));
        Ok(EvaluationReport {
            arch: found.arch.to_string(),
            device: briquette_models::device_name(&device),
            data: shown_path(&request.data.path),
            n_items: found.n_items,
            n_skipped: found.n_skipped,
            batch_size: found.batch_size,
            batch_size_before: found.reference_batch_size,
            is_batch_auto: request.fits.is_auto,
            metrics: found.metrics,
            input_difference: found.input_difference,
            continuation: found.continuation.map(|after| ContinuationFigures {
                prompt: PROMPT.into(),
                before: found.reference_continuation,
                after,
            }),
            before,
            after: figures(&found.latency, found.memory, found.held),
        })
    }

    fn measured(
        (stage, request): (&Evaluate, &Request),
        meters: &[&dyn MemoryMeter],
        options: &RunOptions,
    ) -> Result<Evaluation> {
        let mut after_batch = |done, total| {
            options.progress.items(done, total);
            options.stop.check()
        };
        memory::run_model(options, stage.limit, &request.device, || {
            briquette_eval::evaluate(request, meters, &mut after_batch)
        })
    }

    fn request_of(stage: &Evaluate, model: &Path, reference: Option<&Path>, device: Device) -> Result<Request> {
        if let Some(limit) = stage.limit {
            let mut models = reference.into_iter().chain([model]);
            models.try_for_each(|path| memory::to_run(path, &device, stage)?.check(limit))?;
        }
        Ok(Request {
            model: model.to_path_buf(),
            reference: reference.map(Path::to_path_buf),
            choice: stage.choice.clone(),
            arch: stage.arch.as_deref().map(arch_of).transpose()?,
            data: spec_of(&stage.data),
            batching: batching_of(stage),
            fits: Fits { is_auto: stage.batch_size == BatchSize::Auto, limit: stage.limit, dtype: half(stage.dtype) },
            offload: stage.offload.then(std::env::temp_dir),
            device,
        })
    }

    fn batching_of(stage: &Evaluate) -> Batching {
        let batch_size = match stage.batch_size {
            BatchSize::Of(n) => n,
            BatchSize::Auto => LARGEST_BATCH,
        };
        Batching { batch_size, workers: stage.data.workers.unwrap_or(2) }
    }

    fn arch_of(name: &str) -> Result<Arch> {
        name.parse().map_err(|error: Error| error.at("model.arch"))
    }

    fn held_figures(Held { n_tensors, n_weights, n_bytes, .. }: Held) -> HeldFigures {
        HeldFigures { n_tensors, n_weights, n_bytes }
    }

    fn figures(latency: &Latency, memory: Vec<Memory>, held: BTreeMap<String, Held>) -> RunFigures {
        let one = |memory: Memory| MemoryFigures {
            meter: memory.meter,
            predicted_bytes: memory.predicted_bytes,
            weights_bytes: memory.weights_bytes,
            peak_bytes: memory.peak_bytes,
            after_bytes: memory.after_bytes,
        };
        RunFigures {
            p50_ms: latency.p50_ms,
            p90_ms: latency.p90_ms,
            p99_ms: latency.p99_ms,
            items_per_s: latency.items_per_s,
            memory: memory.into_iter().map(one).collect(),
            held: held.into_iter().map(|(name, held)| (name, held_figures(held))).collect(),
        }
    }
}
