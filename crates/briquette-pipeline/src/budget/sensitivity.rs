//! What a model loses for the square of the step of one tensor.

use briquette_core::Result;
use briquette_flow::curve::Curve;
use briquette_flow::{RunOptions, TensorPlan};
use briquette_formats::Checkpoint;
use briquette_recipe::{Recipe, Sensitivity};

/// What a tensor costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    /// Its loss over the square of its step.
    pub(super) of_square: f64,
    /// Whether nothing that ran has it, as far as its outputs tell.
    pub(super) is_idle: bool,
}

/// What each tensor costs.
///
/// # Errors
/// Config where the data is of another kind than the model takes, or this build cannot run models; those of reading and running.
pub(super) fn of(
    recipe: &Recipe,
    how: Sensitivity,
    open: &[(&TensorPlan, Curve)],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<Vec<Cost>> {
    match how {
        // The mean square error of a step is a twelfth of its square.
        Sensitivity::Relative => {
            let cost = |(_, curve): &(_, Curve)| Cost { of_square: relative(curve), is_idle: false };
            Ok(open.iter().map(cost).collect())
        }
        Sensitivity::Measured { n_samples } => measured::of(recipe, n_samples, open, checkpoint, options),
    }
}

/// The square error of a step over the square of the weights, a weight.
fn relative(curve: &Curve) -> f64 {
    1.0 / (12.0 * curve.rms * curve.rms)
}

#[cfg(not(feature = "model"))]
mod measured {
    use super::*;
    use briquette_core::Error;

    pub(super) fn of(
        _recipe: &Recipe,
        _n_samples: usize,
        _open: &[(&TensorPlan, Curve)],
        _checkpoint: &Checkpoint,
        _options: &RunOptions,
    ) -> Result<Vec<Cost>> {
        Err(Error::config("budget.sensitivity: this build cannot run models; take \"relative\""))
    }
}

#[cfg(feature = "model")]
mod measured {
    use super::*;
    use crate::evaluate::spec_of;
    use crate::solve::{Simulated, arch_of, rows_of};
    use briquette_core::{Affine, Error, Grid, simd};
    use briquette_formats::TensorSource;
    use briquette_models::ModelTask;
    use briquette_runs::evaluate::RunOutputs;
    use briquette_runs::walk::{Room, run_with};
    use briquette_runs::{Samples, metrics};

    /// The step that a tensor is measured at, over the root mean square of its weights: some four bits.
    const MEASURED_AT: f64 = 0.25;
    /// The loss below which nothing happened but rounding in f32.
    const LEAST: f64 = 1e-10;
    /// The share of the usual cost that a tensor has at least: what these items do not show, others may.
    const FLOOR: f64 = 0.02;

    pub(super) fn of(
        recipe: &Recipe,
        n_samples: usize,
        open: &[(&TensorPlan, Curve)],
        checkpoint: &Checkpoint,
        options: &RunOptions,
    ) -> Result<Vec<Cost>> {
        let calibration = recipe.calibration.as_ref().ok_or_else(|| Error::bug("a measure without data"))?;
        let arch = arch_of(calibration, checkpoint)?;
        if arch.task() == ModelTask::Classifier {
            let message = format!("{arch} is no row of blocks, and is not measured; take \"relative\"");
            return Err(Error::config(format!("budget.sensitivity: {message}")));
        }
        let device = briquette_models::device(&options.device)?;
        let spec = spec_of(&calibration.data);
        let data = spec.open(arch.task())?;
        let samples = Samples { n: n_samples.min(calibration.n_samples), seed: calibration.seed };
        let parent = recipe.output.parent().filter(|path| !path.as_os_str().is_empty());
        let room =
            Room { max_bytes: calibration.limit.map(|limit| limit / 4), directory: parent.unwrap_or(".".as_ref()) };
        options.progress.begin("measure", 0);
        briquette_models::guarded(&device, || {
            let run = |weights: &dyn TensorSource| {
                run_with(checkpoint, (arch, weights), &device, (&data, &spec), samples, room, &mut |_, _| {
                    options.stop.check()
                })
            };
            let original = run(checkpoint)?;
            let mut found = Vec::with_capacity(open.len());
            for (tensor, curve) in open {
                let (mut values, step) = (rows_of(tensor, checkpoint, &options.stop)?, MEASURED_AT * curve.rms);
                round(&mut values, step as f32);
                let changed = Simulated::one(checkpoint, tensor, &values);
                let loss = loss_of(&original, &run(&changed)?);
                found.push(Cost { of_square: loss / (step * step), is_idle: loss.abs() < LEAST });
                options.progress.items(found.len(), open.len());
            }
            Ok(with_floor(found, open))
        })
    }

    /// No tensor costs next to nothing.
    fn with_floor(mut costs: Vec<Cost>, open: &[(&TensorPlan, Curve)]) -> Vec<Cost> {
        let usual = |(cost, (_, curve)): (&Cost, &(_, Curve))| cost.of_square / relative(curve);
        let mut all: Vec<f64> = costs.iter().zip(open).filter(|(cost, _)| !cost.is_idle).map(usual).collect();
        all.sort_by(f64::total_cmp);
        let median = all.get(all.len() / 2).copied().unwrap_or(1.0).max(1e-12);
        for (cost, (_, curve)) in costs.iter_mut().zip(open) {
            cost.of_square = cost.of_square.max(FLOOR * median * relative(curve));
        }
        costs
    }

    /// Rounds weights to a grid of this step.
    fn round(values: &mut [f32], step: f32) {
        let affine = Affine::symmetric(step);
        let mut codes = vec![0; values.len()];
        simd::quantize(values, affine, Grid::INT8, &mut codes);
        simd::dequantize(&codes, affine, values);
    }

    /// What is lost: one less the mean cosine of an encoder's outputs, or the nats a token of a decoder.
    fn loss_of(original: &RunOutputs, found: &RunOutputs) -> f64 {
        match (original, found) {
            (RunOutputs::Rows(original), RunOutputs::Rows(found)) => {
                let pairs = original.values.chunks(original.width).zip(found.values.chunks(found.width));
                1.0 - metrics::mean(pairs.map(|(a, b)| metrics::cosine(a, b)))
            }
            (RunOutputs::Likelihood(original), RunOutputs::Likelihood(found)) => {
                (found.nll - original.nll) / found.n_tokens.max(1) as f64
            }
            _ => f64::INFINITY,
        }
    }
}
