//! What a model loses, found by running it.

use super::{Cost, FoundCosts, OpenTensor, TOLD_AT, with_floor};
use crate::solve::{Simulated, arch_of, rows_of};
use briquette_core::{Affine, Error, Grid, Result, simd};
use briquette_flow::RunOptions;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Arch, ModelTask};
use briquette_recipe::Recipe;
use briquette_runs::evaluate::RunOutputs;
use briquette_runs::walk::{Room, run_with};
use briquette_runs::{LossUnit, Samples, curvatures, metrics};
use briquette_training::spec_of;
use burn::tensor::Device;
use std::path::Path;

/// The loss below which nothing happened but rounding in f32.
const LEAST: f64 = 1e-10;

/// A model and some data to run it on.
struct Run<'a> {
    arch: Arch,
    device: Device,
    data: Data,
    spec: DataSpec,
    samples: Samples,
    room: Room<'a>,
}

impl<'a> Run<'a> {
    fn of(recipe: &'a Recipe, n_samples: usize, checkpoint: &Checkpoint, options: &RunOptions) -> Result<Self> {
        let calibration = recipe.calibration.as_ref().ok_or_else(|| Error::bug("a measure without data"))?;
        let (arch, spec) = (arch_of(calibration, checkpoint)?, spec_of(&calibration.data));
        let parent = recipe.output.parent().filter(|path| !path.as_os_str().is_empty());
        let directory = parent.filter(|path| path.exists()).unwrap_or(Path::new("."));
        Ok(Self {
            arch,
            device: briquette_models::device(&options.device)?,
            data: spec.open(arch.task())?,
            spec,
            samples: Samples { n: n_samples.min(calibration.n_samples), seed: calibration.seed },
            room: Room { max_bytes: calibration.limit.map(|limit| limit / 4), directory },
        })
    }
}

/// By one pass and back.
pub(super) fn gradient(
    recipe: &Recipe,
    n_samples: usize,
    open: &[OpenTensor],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<FoundCosts> {
    let Run { arch, device, data, spec, samples, room } = Run::of(recipe, n_samples, checkpoint, options)?;
    options.progress.begin("gradients", 0);
    let mut after = |done, total| {
        options.progress.items(done, total);
        options.stop.check()
    };
    let found = briquette_models::guarded(&device, || {
        curvatures(checkpoint, arch, &device, (&data, &spec), (samples, room), &mut after)
    })?;
    // The mean square error of a step is a twelfth of its square, and a loss half of the curvature times it.
    let cost = |(tensor, _): &OpenTensor| {
        let trace = found.traces.get(tensor.info.name.as_ref() as &str).copied().unwrap_or(0.0);
        Cost { of_square: trace / 24.0, is_idle: trace <= 0.0 }
    };
    let costs = with_floor(open.iter().map(cost).collect(), open);
    Ok(FoundCosts { costs, unit: unit_of(found.unit) })
}

fn unit_of(unit: LossUnit) -> &'static str {
    match unit {
        LossUnit::Cosine => "1 - cosine",
        LossUnit::Nats => "nats",
    }
}

/// By running it with each tensor alone rounded.
pub(super) fn measured(
    recipe: &Recipe,
    n_samples: usize,
    open: &[OpenTensor],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<FoundCosts> {
    let Run { arch, device, data, spec, samples, room } = Run::of(recipe, n_samples, checkpoint, options)?;
    let unit = match arch.task() {
        ModelTask::Encoder => LossUnit::Cosine,
        ModelTask::Decoder => LossUnit::Nats,
        ModelTask::Classifier => {
            let message = format!("{arch} is no row of blocks, and is not measured; take \"gradient\"");
            return Err(Error::config(format!("budget.sensitivity: {message}")));
        }
    };
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
            let (mut values, step) = (rows_of(tensor, checkpoint, &options.stop)?, TOLD_AT * curve.rms);
            round(&mut values, step as f32);
            let changed = Simulated::one(checkpoint, tensor, &values);
            let loss = loss_of(&original, &run(&changed)?);
            found.push(Cost { of_square: loss / (step * step), is_idle: loss.abs() < LEAST });
            options.progress.items(found.len(), open.len());
        }
        Ok(FoundCosts { costs: with_floor(found, open), unit: unit_of(unit) })
    })
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
