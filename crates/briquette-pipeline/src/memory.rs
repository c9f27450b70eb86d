//! Predicts the minimum memory of the models of a recipe, and keeps the file stages within a limit.
//!
//! The prediction is computed from headers, and checked against the limit before any work.

#[cfg(feature = "model")]
use briquette_core::memory::KeptMemory;
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;
use briquette_writer::{Plan, RunOptions, Workers};
use serde::Serialize;

/// Models that run at the same time, and the size of their weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The activity in words: `run models/minilm`.
    pub what: String,
    /// The size of the weights in memory in bytes; computation takes more.
    pub weights_bytes: u64,
}

/// The memory needs of a recipe, and its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// `memory.limit`.
    pub limit_bytes: Option<u64>,
    /// The needs that are known before the run, in order. Models that stages change are not included.
    pub runs: Vec<Need>,
}

impl Needs {
    /// Returns the needs of a recipe on the device with this name.
    ///
    /// # Errors
    /// Config: the device is unknown. Input and Io: a model cannot be read.
    #[cfg(feature = "model")]
    pub fn of(recipe: &Recipe, device: &str) -> Result<Self> {
        let runs = known::runs(recipe, device).map_err(|error| crate::hub::explain(error, recipe))?;
        Ok(Self { limit_bytes: recipe.memory_limit, runs })
    }

    /// Returns no needs: this build cannot run models.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "model"))]
    pub fn of(recipe: &Recipe, _device: &str) -> Result<Self> {
        Ok(Self { limit_bytes: recipe.memory_limit, runs: Vec::new() })
    }

    /// Checks that the weights alone are within the limit.
    ///
    /// # Errors
    /// Refused: they exceed the limit; the message has both sizes.
    pub fn check(&self) -> Result<()> {
        let Some(limit) = self.limit_bytes else { return Ok(()) };
        self.runs.iter().try_for_each(|need| need.check(limit))
    }
}

impl Need {
    pub(crate) fn check(&self, limit: u64) -> Result<()> {
        let Self { what, weights_bytes } = self;
        if *weights_bytes <= limit {
            return Ok(());
        }
        let message = format!("cannot {what}: the weights alone take {weights_bytes} bytes, expected at most {limit}");
        Err(Error::refused(format!("{message}; raise the limit")).at("memory.limit"))
    }
}

/// Refuses a recipe whose models exceed its limit.
pub(crate) fn check(recipe: &Recipe, device: &str) -> Result<()> {
    if recipe.memory_limit.is_none() { Ok(()) } else { Needs::of(recipe, device)?.check() }
}

/// Returns a limit on the memory of this process from now on.
pub(crate) fn limit_of_host(limit: Option<u64>, options: &RunOptions) -> Option<MemoryLimit<'_>> {
    limit.map(|n_bytes| MemoryLimit::set(n_bytes, options.meter.as_ref()))
}

/// Returns the threads that run a plan within a memory limit; `workers` are used without one.
///
/// # Errors
/// - Refused: one thread needs more memory. The error names the tensor.
/// - Io: the system cannot start threads.
pub(crate) fn workers_within(
    limit: Option<&MemoryLimit>,
    plan: &mut Plan,
    checkpoint: &Checkpoint,
    workers: Workers,
    options: &RunOptions,
) -> Result<Workers> {
    let Some(limit) = limit else { return Ok(workers) };
    match plan.fit(checkpoint, limit, workers.n_threads())? {
        threads if threads == workers.n_threads() => Ok(workers),
        threads => Workers::new(&RunOptions { threads, ..options.clone() }),
    }
}

#[cfg(feature = "model")]
pub(crate) use known::{to_calibrate, to_run, to_train};

#[cfg(feature = "model")]
mod known {
    use super::*;
    use crate::arch::arch_of;
    use crate::training::{half, needs_teacher, teacher_of};
    use briquette_core::shown_path;
    use briquette_eval::layerwise::offloaded_bytes;
    use briquette_formats::presence;
    use briquette_models::Arch;
    use briquette_models::memory::{Device, predicted_bytes};
    use briquette_recipe::{DistillStage, Evaluate, ModelStage, Student};
    use std::path::Path;

    /// Returns the runs whose weights are in existing files.
    pub(super) fn runs(recipe: &Recipe, device: &str) -> Result<Vec<Need>> {
        let mut runs = Vec::new();
        // After another part, the model to calibrate does not exist yet.
        let calibration = recipe.calibration.as_ref().filter(|_| recipe.parts.is_empty());
        if recipe.trainings().next().is_none() && recipe.evaluate.is_none() && calibration.is_none() {
            return Ok(runs);
        }
        let device = briquette_models::device(device)?;
        if let Some(run) = calibration {
            let checkpoint = crate::open::model(recipe)?;
            let arch = arch_of(run.arch.as_deref(), &checkpoint).ok();
            runs.push(to_calibrate(&checkpoint, arch, &device)?);
        }
        for part in &recipe.parts {
            let ModelStage::Distill(stage) = &part.then else { break };
            runs.push(to_train(stage, &recipe.model, &recipe.model, &device)?);
            // The next training starts from the result of this one, whose size is not known yet.
            if stage.student != Student::Same {
                break;
            }
        }
        if let Some(stage) = recipe.scales.as_ref().filter(|_| recipe.parts.is_empty()) {
            runs.push(to_train(stage, &recipe.model, &recipe.model, &device)?);
        }
        if let Some(stage) = &recipe.evaluate {
            runs.push(to_run(&recipe.model, &device, stage)?);
        }
        Ok(runs)
    }

    /// Returns the need of a calibration, which has the weights of one block in memory at a time.
    pub(crate) fn to_calibrate(checkpoint: &Checkpoint, arch: Option<Arch>, device: &Device) -> Result<Need> {
        let by_block = arch.map(|arch| offloaded_bytes(checkpoint, arch, device)).transpose()?;
        let weights_bytes = by_block.unwrap_or_else(|| predicted_bytes(checkpoint, arch, None, device));
        Ok(Need { what: format!("calibrate {}", shown_path(checkpoint.path())), weights_bytes })
    }

    /// Returns the need of an evaluation.
    pub(crate) fn to_run(model: &Path, device: &Device, stage: &Evaluate) -> Result<Need> {
        let checkpoint = Checkpoint::open_as(model, &stage.choice)?;
        let named = || stage.arch.as_deref().and_then(|name| name.parse().ok());
        let arch = Arch::detect(&checkpoint).ok().or_else(named);
        let by_block = arch.filter(|_| stage.offload);
        let by_block = by_block.map(|arch| offloaded_bytes(&checkpoint, arch, device)).transpose()?;
        let weights_bytes = by_block.unwrap_or_else(|| predicted_bytes(&checkpoint, arch, half(stage.dtype), device));
        Ok(Need { what: format!("run {}", shown_path(model)), weights_bytes })
    }

    /// Returns the need of a training that starts from `model`, with its teacher. The default teacher is
    /// `original`.
    ///
    /// A student of other sizes replaces `model` before the teacher is loaded.
    pub(crate) fn to_train(stage: &DistillStage, model: &Path, original: &Path, device: &Device) -> Result<Need> {
        let student =
            predicted_bytes(&Checkpoint::open_as(model, &stage.choice)?, None, None, &device.clone().autodiff());
        let mut need = Need { what: format!("train {}", shown_path(model)), weights_bytes: student };
        let teacher = stage.teacher.as_deref().unwrap_or(original);
        // The teacher may be the output of an earlier job and not exist yet.
        if needs_teacher(stage)? && presence::exists(teacher)? {
            let teacher_bytes = predicted_bytes(&teacher_of(stage, original)?, None, None, device);
            need.what += &format!(" with {} as teacher", shown_path(teacher));
            need.weights_bytes = match stage.student {
                Student::Same => student + teacher_bytes,
                Student::Layers(..) | Student::Sizes(_) => student.max(teacher_bytes),
            };
        }
        Ok(need)
    }
}

/// Runs a model on a device; known panics of the backend become errors. Without a memory limit, freed memory is kept for later values.
///
/// # Errors
/// See [`guarded`](briquette_models::guarded).
#[cfg(feature = "model")]
pub(crate) fn run_model<T>(
    options: &RunOptions,
    limit: Option<u64>,
    device: &burn::tensor::Device,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _kept = limit.is_none().then(|| KeptMemory::of(options.meter.as_ref()));
    briquette_models::guarded(device, work)
}
