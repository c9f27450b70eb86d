//! The sensitivity of a model to errors of each tensor: measured, stored in a file, and reused.

#[cfg(feature = "model")]
mod by_running;
mod request;

use crate::identity::PROGRAM;
use crate::report::{SensitivityReport, TensorSensitivity};
use briquette_core::{Error, InputStats, Result};
use briquette_formats::input_stats::{StatisticsFile, fingerprint};
use briquette_formats::{Checkpoint, InputFile, json, limits};
use briquette_methods::prune::{Score, SparsityPattern};
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch};
use briquette_recipe::{Budget, MeasuredLoss, Recipe, SchemeChoice, Sensitivity};
use briquette_writer::curve::{Curve, NamedChoice, RowSteps, TensorChoices};
use briquette_writer::{Cut, Plan, Pruning, Quant, RunOptions, TensorPlan, Workers};
pub use request::{SensitivityRequest, sensitivity};
use std::collections::BTreeMap;
use std::path::Path;

/// The step size at which losses are reported, relative to the RMS of the weights: about four bits.
const REPORTED_AT: f64 = 0.25;

/// A tensor whose step size is open, and its size at each step size.
pub(crate) type OpenTensor<'a, 'p> = (&'a TensorPlan<'p>, Curve);

/// Returns whether the step size of a tensor is open.
pub(crate) fn is_open(tensor: &TensorPlan) -> bool {
    tensor.tied_to().is_none() && tensor.quant.is_some_and(|quant| quant.spec.range == ScaleSearch::Step(None))
}

/// Returns the tensors of a plan whose step size is open, with their size curves.
///
/// `rows` are the row steps of tensors, by index.
///
/// # Errors
/// Config: there are no such tensors. Input and Io: a tensor cannot be read.
pub(crate) fn open_tensors<'a, 'p>(
    plan: &'a Plan<'p>,
    budget: Option<&Budget>,
    rows: &BTreeMap<usize, RowSteps>,
    checkpoint: &Checkpoint,
    workers: &Workers,
) -> Result<Vec<OpenTensor<'a, 'p>>> {
    let open: Vec<&TensorPlan> = plan.tensors.iter().filter(|tensor| is_open(tensor)).collect();
    if open.is_empty() {
        return Err(
            Error::config("no tensor of the model has an open step size; choose tensors with include").at("budget")
        );
    }
    workers.begin("weights", open.iter().map(|tensor| tensor.info.n_bytes()).sum());
    workers.map(
        &open,
        || (),
        |(), tensor| {
            let rows = rows.get(&tensor.index()).cloned();
            let choices = TensorChoices { rows, ..choices_of(plan, tensor, budget)? };
            let curve = Curve::of(tensor, checkpoint, choices, workers.stop())?;
            workers.advance(tensor.info.n_bytes());
            Ok((*tensor, curve))
        },
    )
}

/// Returns the choices of a budget for a tensor, without patterns that do not divide its rows.
///
/// If the groups of a scheme do not divide the rows, the tensor has one scale per row, or stays float for
/// transformers.
fn choices_of(plan: &Plan, tensor: &TensorPlan, budget: Option<&Budget>) -> Result<TensorChoices> {
    let Some(Budget { has_steps, schemes, .. }) = budget else {
        return Ok(TensorChoices { has_steps: true, named: Vec::new(), rows: None });
    };
    if tensor.prune.is_some() && schemes.iter().any(|choice| choice.pruned.is_some()) {
        let message = "is pruned by a stage already; exclude it from that stage, or remove sparsities from the choices";
        return Err(Error::config(message).at(tensor.culprit()).at("budget.choices"));
    }
    let fits = |choice: &&SchemeChoice| {
        let is_whole = |m: usize| tensor.rows().n_cols.is_multiple_of(m);
        !matches!(choice.pruned, Some(SparsityPattern::NOfM { m, .. }) if !is_whole(m))
    };
    let named = schemes.iter().filter(fits).map(|SchemeChoice { name, scheme, pruned }| {
        let mut candidate = tensor.clone();
        let cut = pruned.map(|pattern| pattern.of(tensor.output_rows.n_rows, tensor.output_rows.n_cols));
        candidate.prune = cut.map(|cut| Pruning { score: Score::Magnitude, cut: Cut::Pattern(cut) }).or(tensor.prune);
        let scale = tensor.quant.map_or(scheme.weights.scale, |quant| quant.spec.scale);
        let fitted = QuantSpec { scale, ..scheme.weights.for_columns(tensor.rows().n_cols) };
        let stays_float = plan.profile.is_for_transformers() && fitted.grouping != scheme.weights.grouping;
        let spec = (!stays_float).then_some(fitted);
        candidate.quant =
            spec.map(|spec| Quant { spec, activations: scheme.activations, is_given: false, inputs: None });
        let bytes = plan.predict_tensor(&candidate)?.0 as f64;
        let rounds_inputs = !stays_float && scheme.activations != Activations::Float;
        Ok(NamedChoice { scheme: name.clone(), spec, rounds_inputs, cut, bytes })
    });
    let named = named.collect::<Result<Vec<_>>>()?;
    if named.is_empty() && !has_steps {
        let message = "no choice has a pattern that divides its rows; add one without a pattern, such as \"int8\"";
        return Err(Error::config(message).at(tensor.culprit()).at("budget.choices"));
    }
    Ok(TensorChoices { has_steps: *has_steps, named, rows: None })
}

/// The loss of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// The loss per squared step size.
    of_square: f64,
    /// Whether no sample used the tensor, as far as known.
    is_idle: bool,
}

/// Losses of tensors, and their unit.
struct FoundCosts {
    costs: Vec<Cost>,
    unit: &'static str,
}

/// Measures the sensitivity of a recipe's model to errors of some tensors.
///
/// # Errors
/// - Config: the data is of another kind than the model takes, or this build cannot run models.
/// - Input: a file belongs to another model. Input and Io: a tensor cannot be read.
pub(crate) fn find(
    recipe: &Recipe,
    how: &Sensitivity,
    open: &[OpenTensor],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<SensitivityReport> {
    let FoundCosts { costs, unit } = match how {
        Sensitivity::File(path) => return of_file(path, open, checkpoint),
        Sensitivity::Relative => relative(recipe, open, checkpoint)?,
        Sensitivity::Gradient { n_samples } => gradient(recipe, *n_samples, open, checkpoint, options)?,
        Sensitivity::Measured { n_samples, loss } => measured(recipe, (*n_samples, *loss), open, checkpoint, options)?,
    };
    let tensors = open.iter().zip(costs).map(|((tensor, curve), cost)| TensorSensitivity {
        name: tensor.info.name.to_string(),
        n_weights: curve.n_weights,
        rms: curve.rms,
        loss_of_square: cost.of_square,
        loss: at_four_bits(cost.of_square, curve.rms),
        against: None,
        is_idle: cost.is_idle,
    });
    Ok(SensitivityReport {
        format: SensitivityReport::FORMAT.into(),
        version: SensitivityReport::VERSION,
        producer: PROGRAM.into(),
        model: recipe.model.display().to_string(),
        fingerprint: fingerprint(checkpoint)?.to_string(),
        contents: BTreeMap::new(),
        how: name_of(how).into(),
        unit: unit.into(),
        loss: loss_of(how).map(str::to_string),
        data: data_of(recipe, how),
        n_samples: samples_of(how),
        against: None,
        rank_correlation: None,
        tensors: tensors.collect(),
    })
}

/// Returns the loss at about four bits.
pub(crate) fn at_four_bits(of_square: f64, rms: f64) -> f64 {
    of_square * (REPORTED_AT * rms).powi(2)
}

/// Returns the name of a sensitivity method.
fn name_of(how: &Sensitivity) -> &'static str {
    let [gradient, measured, relative] = Sensitivity::NAMES;
    match how {
        Sensitivity::Gradient { .. } => gradient,
        Sensitivity::Measured { .. } => measured,
        Sensitivity::Relative => relative,
        Sensitivity::File(_) => "file",
    }
}

/// Reads the sensitivities of all these tensors from a file of an earlier run.
fn of_file(path: &Path, open: &[OpenTensor], checkpoint: &Checkpoint) -> Result<SensitivityReport> {
    let found = read(path)?;
    let own = fingerprint(checkpoint)?.to_string();
    if found.fingerprint != own {
        let message = format!(
            "found sensitivities of another model with fingerprint {}, expected {own} of {}; measure them again",
            found.fingerprint,
            checkpoint.path().display()
        );
        return Err(Error::input(message).at(path.display()));
    }
    let is_known = |name: &str| found.tensor(name).is_some_and(|tensor| tensor.loss_of_square >= 0.0);
    match open.iter().find(|(tensor, _)| !is_known(&tensor.info.name)) {
        Some((tensor, _)) => {
            let message = format!("has no loss for {:?}; measure all tensors that are quantized", tensor.info.name);
            Err(Error::input(message).at(path.display()))
        }
        None => Ok(found),
    }
}

/// Returns whether a file has the sensitivities of this method, found by this program with as many items of inputs with these contents.
pub(crate) fn is_found_so(path: &Path, how: &Sensitivity, contents: &BTreeMap<String, String>) -> bool {
    read(path).is_ok_and(|found| {
        (found.producer.as_str(), found.how.as_str(), found.n_samples, found.loss.as_deref(), &found.contents)
            == (PROGRAM, name_of(how), samples_of(how), loss_of(how), contents)
    })
}

/// Returns the number of items that a method runs.
fn samples_of(how: &Sensitivity) -> Option<usize> {
    match how {
        Sensitivity::Gradient { n_samples } | Sensitivity::Measured { n_samples, .. } => Some(*n_samples),
        Sensitivity::Relative | Sensitivity::File(_) => None,
    }
}

/// Returns the requested loss, if there is one.
fn loss_of(how: &Sensitivity) -> Option<&'static str> {
    match how {
        Sensitivity::Measured { loss, .. } => loss.map(MeasuredLoss::name),
        _ => None,
    }
}

/// Returns the data that a method runs the model on.
fn data_of(recipe: &Recipe, how: &Sensitivity) -> Option<String> {
    let run = recipe.calibration.as_ref().filter(|_| samples_of(how).is_some())?;
    Some(run.data.eval.as_deref()?.display().to_string())
}

fn read(path: &Path) -> Result<SensitivityReport> {
    let bytes = InputFile::open(path)?.read_all(limits::MAX_OWN_BYTES)?;
    let found: SensitivityReport = json::parse(&bytes, "a file of sensitivities", path)?;
    if (found.format.as_str(), found.version) != (SensitivityReport::FORMAT, SensitivityReport::VERSION) {
        let message = format!(
            "found format {:?}, version {}, expected {:?}, version {}; write it with `briquette sensitivity`",
            found.format,
            found.version,
            SensitivityReport::FORMAT,
            SensitivityReport::VERSION
        );
        return Err(Error::input(message).at(path.display()));
    }
    Ok(found)
}

/// Returns the squared error of a layer's outputs relative to the outputs. If the input statistics are unknown,
/// it uses the weights instead.
fn relative(recipe: &Recipe, open: &[OpenTensor], checkpoint: &Checkpoint) -> Result<FoundCosts> {
    let mut layers: BTreeMap<String, InputStats> = BTreeMap::new();
    for path in recipe.stages.iter().filter_map(briquette_recipe::Stage::statistics) {
        let file = StatisticsFile::read(path)?;
        file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
        layers.extend(file.layers);
    }
    let cost = |(tensor, curve): &OpenTensor| {
        let stats = layers.get(tensor.info.name.strip_suffix(".weight").unwrap_or(&tensor.info.name));
        let energy = stats.and_then(|stats| curve.output_error(&stats.view().rms));
        Cost { of_square: of_weights(curve) * energy.unwrap_or(1.0), is_idle: false }
    };
    Ok(FoundCosts { costs: open.iter().map(cost).collect(), unit: "relative" })
}

/// Returns the squared error of a step size relative to the squared weights, per weight: the error is
/// `step²/12`.
fn of_weights(curve: &Curve) -> f64 {
    1.0 / (12.0 * curve.rms * curve.rms)
}

/// The minimum cost of a tensor relative to the median: other items may show what the sampled ones do not.
const FLOOR: f64 = 0.02;

/// Raises very low costs to the minimum.
#[cfg_attr(not(feature = "model"), allow(dead_code))]
fn with_floor(mut costs: Vec<Cost>, open: &[OpenTensor]) -> Vec<Cost> {
    let usual = |(cost, (_, curve)): (&Cost, &OpenTensor)| cost.of_square / of_weights(curve);
    let mut all: Vec<f64> = costs.iter().zip(open).filter(|(cost, _)| !cost.is_idle).map(usual).collect();
    all.sort_by(f64::total_cmp);
    // A metric may respond to a few tensors only; then the mean replaces the median.
    let mean = all.iter().map(|cost| cost.max(0.0)).sum::<f64>() / all.len().max(1) as f64;
    let median = all.get(all.len() / 2).copied().filter(|median| *median > 0.0).unwrap_or(mean);
    let median = if median > 0.0 { median } else { 1.0 };
    for (cost, (_, curve)) in costs.iter_mut().zip(open) {
        cost.of_square = cost.of_square.max(FLOOR * median * of_weights(curve));
    }
    costs
}

#[cfg(feature = "model")]
use by_running::{gradient, measured};

#[cfg(not(feature = "model"))]
fn gradient(_: &Recipe, _: usize, _: &[OpenTensor], _: &Checkpoint, _: &RunOptions) -> Result<FoundCosts> {
    Err(Error::lacks_feature("model", "run models").at("calibration.data"))
}

#[cfg(not(feature = "model"))]
fn measured(
    recipe: &Recipe,
    (n_samples, _): (usize, Option<MeasuredLoss>),
    open: &[OpenTensor],
    checkpoint: &Checkpoint,
    options: &RunOptions,
) -> Result<FoundCosts> {
    gradient(recipe, n_samples, open, checkpoint, options)
}
