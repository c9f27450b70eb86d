//! Sensitivities that are measured by running the model.

use super::{Cost, FoundCosts, OpenTensor, REPORTED_AT, with_floor};
use crate::arch::arch_of;
use crate::memory::{limit_of_host, run_model};
use crate::solve::{Simulated, rows_of};
use crate::training::spec_of;
use briquette_core::{Affine, Error, Grid, Result, simd};
use briquette_eval::layerwise::Room;
use briquette_eval::{Baseline, LossMeasure, LossUnit, ModelOnData, Samples, curvatures};
use briquette_formats::{Checkpoint, presence};
use briquette_models::Arch;
use briquette_models::data::{Data, DataSpec};
use briquette_recipe::{MeasuredLoss, Recipe};
use briquette_writer::RunOptions;
use burn::tensor::Device;
use std::path::Path;

/// A model and data to run it on.
struct Run<'a> {
    arch: Arch,
    device: Device,
    data: Data,
    spec: DataSpec,
    samples: Samples,
    room: Room<'a>,
}

impl<'a> Run<'a> {
    fn of(recipe: &'a Recipe, n_samples: usize, checkpoint: &Checkpoint, options: &'a RunOptions) -> Result<Self> {
        let calibration = recipe.calibration.as_ref().ok_or_else(|| Error::bug("a measurement without data"))?;
        let (arch, spec) = (arch_of(calibration.arch.as_deref(), checkpoint)?, spec_of(&calibration.data));
        let parent = recipe.output.parent().filter(|path| !path.as_os_str().is_empty());
        let directory = match parent {
            Some(parent) if presence::exists(parent)? => parent,
            _ => Path::new("."),
        };
        Ok(Self {
            arch,
            device: briquette_models::device(&options.device)?,
            data: spec.open_within(arch.task(), limit_of_host(calibration.limit, options))?,
            spec,
            samples: Samples { n: n_samples.min(calibration.n_samples), seed: calibration.seed },
            room: Room::within(limit_of_host(calibration.limit, options), directory),
        })
    }
}

/// Measures the losses by one forward and backward pass.
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
    let found = run_model(options, recipe.memory_limit, &device, || {
        curvatures(checkpoint, arch, &device, (&data, &spec), (samples, room), &mut after)
    })?;
    // The mean squared error of a step size is `step²/12`, and a loss is half of the curvature times the error.
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
        LossUnit::SquaredError => "squared error of the score / 2",
    }
}

/// Measures the losses by rounding each tensor separately.
pub(super) fn measured(
    recipe: &Recipe,
    (n_samples, loss): (usize, Option<MeasuredLoss>),
    open: &[OpenTensor],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<FoundCosts> {
    let Run { arch, device, data, spec, samples, room } = Run::of(recipe, n_samples, checkpoint, options)?;
    let by = loss.map_or_else(|| LossMeasure::of(arch.task()), measure_of);
    by.check(arch.task(), &data).map_err(|error| error.at("budget.loss"))?;
    options.progress.begin("measure", 0);
    let mut check_stop = |_, _| options.stop.check();
    run_model(options, recipe.memory_limit, &device, || {
        let of = ModelOnData { checkpoint, arch, device: &device, over: (&data, &spec), samples, room };
        let original = Baseline::run(of, by, &mut check_stop)?;
        let unit = original.unit()?;
        let mut found = Vec::with_capacity(open.len());
        for (tensor, curve) in open {
            let (mut values, step) = (rows_of(tensor, checkpoint, &options.stop)?, REPORTED_AT * curve.rms);
            round(&mut values, step as f32);
            let cost = original.cost(&Simulated::one(checkpoint, tensor, &values), &mut check_stop)?;
            found.push(Cost { of_square: cost.loss / (step * step), is_idle: !cost.is_seen });
            options.progress.items(found.len(), open.len());
        }
        Ok(FoundCosts { costs: with_floor(found, open), unit })
    })
}

fn measure_of(loss: MeasuredLoss) -> LossMeasure {
    match loss {
        MeasuredLoss::Cosine => LossMeasure::Cosine,
        MeasuredLoss::Kl => LossMeasure::Kl,
        MeasuredLoss::Metric => LossMeasure::Metric,
    }
}

/// Rounds weights to a grid with this step size.
fn round(values: &mut [f32], step: f32) {
    let affine = Affine::symmetric(step);
    let mut codes = vec![0; values.len()];
    simd::quantize(values, affine, Grid::INT8, &mut codes);
    simd::dequantize(&codes, affine, values);
}
