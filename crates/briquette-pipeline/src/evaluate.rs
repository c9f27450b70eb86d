//! Running a model and the one it came from: quality, latency and memory, before and after.

use crate::context::RunOptions;
use crate::recipe::Evaluate;
use briquette_core::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What running a model showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationReport {
    /// The architecture.
    pub arch: String,
    /// Where it ran.
    pub device: String,
    /// The data.
    pub data: String,
    /// Sentences, images, or tokens predicted.
    pub n_items: usize,
    /// Images that did not decode.
    pub n_skipped: usize,
    /// Items of the largest batch of the model; tiles, where images are cut into those.
    pub batch_size: usize,
    /// Items of the largest batch of the original.
    #[serde(default)]
    pub batch_size_before: Option<usize>,
    /// Whether that was found while they ran.
    #[serde(default)]
    pub is_batch_auto: bool,
    /// What was measured, by name; `reference_` of what the original has of its own.
    pub metrics: BTreeMap<String, f64>,
    /// The original.
    pub before: Option<RunFigures>,
    /// The model.
    pub after: RunFigures,
}

/// What one model took to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunFigures {
    /// Milliseconds of a batch: the median, and what nine of ten and 99 of 100 stay below.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p90_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// Items a second.
    pub items_per_s: f64,
    /// What each meter saw.
    pub memory: Vec<MemoryFigures>,
    /// How weights were held: `int8` and `sparse int8` were multiplied as integers, `int8 weight-only` and `int4` became
    /// floats in registers, `int8 as floats` was decoded for each use, tables were looked up.
    #[serde(default)]
    pub held: BTreeMap<String, HeldFigures>,
}

/// Parameters that are held in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldFigures {
    /// Parameters.
    pub n_tensors: usize,
    /// Weights, zeros too.
    pub n_weights: usize,
    /// Bytes they take.
    pub n_bytes: usize,
}

/// What one meter saw, above what was there before the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFigures {
    /// What was measured, in words.
    pub meter: String,
    /// Bytes of the weights, as the headers foretold them, where the meter sees them.
    pub predicted_bytes: Option<u64>,
    /// Bytes that its network held, where dropping it gave any back.
    pub weights_bytes: Option<u64>,
    /// The most while it ran.
    pub peak_bytes: Option<u64>,
    /// What was left when it was dropped.
    pub after_bytes: Option<u64>,
}

/// Runs `model`, and `reference` where there is one, as asked.
///
/// # Errors
/// Config where there is no such device or data of that kind; Input where data or models are damaged; Refused over the
/// memory limit or for outputs that are not finite; Io.
#[cfg(feature = "model")]
pub fn evaluate(
    asked: &Evaluate,
    model: &Path,
    reference: Option<&Path>,
    options: &RunOptions,
) -> Result<EvaluationReport> {
    run::evaluate(asked, model, reference, options)
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub fn evaluate(
    _asked: &Evaluate,
    _model: &Path,
    _reference: Option<&Path>,
    _options: &RunOptions,
) -> Result<EvaluationReport> {
    Err(briquette_core::Error::config("this build cannot run models; build it with the feature model"))
}

#[cfg(feature = "model")]
pub(crate) use run::spec_of;

#[cfg(feature = "model")]
mod run {
    use super::*;
    use crate::memory;
    use crate::recipe::BatchSize;
    use crate::recipe::raw::RawData;
    use briquette_core::Error;
    use briquette_core::memory::MemoryMeter;
    use briquette_models::batches::Batching;
    use briquette_models::data::{DataSpec, Normalize};
    use briquette_models::memory::Device;
    use briquette_models::memory::{Memory, device_meters};
    use briquette_models::{Arch, Evaluation, Fits, Held, Latency, Request};

    /// What is tried first where the size of a batch is to be found.
    const LARGEST_BATCH: usize = 256;

    pub(super) fn evaluate(
        asked: &Evaluate,
        model: &Path,
        reference: Option<&Path>,
        options: &RunOptions,
    ) -> Result<EvaluationReport> {
        let device = briquette_models::device(&options.device)?;
        let request = request_of(asked, model, reference, device.clone())?;
        let of_device = device_meters(&device);
        let meters: Vec<&dyn MemoryMeter> = [options.meter.as_ref() as &dyn MemoryMeter]
            .into_iter()
            .chain(of_device.iter().map(|meter| meter.as_ref() as &dyn MemoryMeter))
            .collect();
        options.progress.runs_on(device_meters(&device));
        options.progress.begin("evaluate", 0);
        let found = measured(&request, &meters, options)?;
        let before =
            found.reference_latency.map(|latency| figures(&latency, found.reference_memory, found.reference_held));
        Ok(EvaluationReport {
            arch: found.arch.to_string(),
            device: briquette_models::device_name(&device),
            data: request.data.path.display().to_string(),
            n_items: found.n_items,
            n_skipped: found.n_skipped,
            batch_size: found.batch_size,
            batch_size_before: found.reference_batch_size,
            is_batch_auto: request.fits.is_auto,
            metrics: found.metrics,
            before,
            after: figures(&found.latency, found.memory, found.held),
        })
    }

    fn measured(request: &Request, meters: &[&dyn MemoryMeter], options: &RunOptions) -> Result<Evaluation> {
        let mut after_batch = |done, total| {
            options.progress.items(done, total);
            options.stop.check()
        };
        briquette_models::guarded(&request.device, || briquette_models::evaluate(request, meters, &mut after_batch))
    }

    fn request_of(asked: &Evaluate, model: &Path, reference: Option<&Path>, device: Device) -> Result<Request> {
        if let Some(limit) = asked.limit {
            let mut models = reference.into_iter().chain([model]);
            models.try_for_each(|path| memory::to_run(path, &device, asked)?.check(limit))?;
        }
        Ok(Request {
            model: model.to_path_buf(),
            reference: reference.map(Path::to_path_buf),
            choice: asked.choice.clone(),
            arch: asked.arch.as_deref().map(arch_of).transpose()?,
            data: spec_of(&asked.data),
            batching: batching_of(asked),
            fits: Fits {
                is_auto: asked.batch_size == BatchSize::Auto,
                limit: asked.limit,
                dtype: crate::half::half(asked.dtype),
            },
            device,
        })
    }

    fn batching_of(asked: &Evaluate) -> Batching {
        let batch_size = match asked.batch_size {
            BatchSize::Of(n) => n,
            BatchSize::Auto => LARGEST_BATCH,
        };
        Batching { batch_size, workers: asked.data.workers.unwrap_or(2) }
    }

    fn arch_of(name: &str) -> Result<Arch> {
        name.parse().map_err(|error: Error| error.at("model.arch"))
    }

    /// The data to evaluate on, as a recipe says it.
    pub(crate) fn spec_of(data: &RawData) -> DataSpec {
        let data = data.clone();
        DataSpec {
            path: data.eval.unwrap_or_default(),
            labels: data.labels,
            max_length: data.max_length,
            size: data.size,
            crop: data.crop,
            tile: data.tile,
            normalize: data.normalize.map(|of| Normalize { mean: of.mean, std: of.std }),
            strict: data.strict,
            ..DataSpec::default()
        }
    }

    fn held_figures(Held { n_tensors, n_weights, n_bytes }: Held) -> HeldFigures {
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
