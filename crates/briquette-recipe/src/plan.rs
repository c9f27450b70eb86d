//! Plans what a recipe does to each tensor.
//!
//! It reads the headers, and of the weights only tensors that may be tied.

mod choose;
pub mod heads;
pub mod in_memory;
mod in_place;
pub mod interop;
mod keep;
mod norms;
pub mod role;
pub mod siblings;
mod statistics;
mod storage;
mod student;
pub mod topology;
mod untouched;

use crate::{Budget, CalibrationRun, Recipe, Sensitivity, Stage, StageKind, Target};
use briquette_core::encoded::ScaleType;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{Checkpoint, Compressed, OutputFormat, TensorInfo, TensorSource};
use briquette_methods::quant::ScaleSearch;
use briquette_writer::ties;
use briquette_writer::{Plan, Stop, TensorPlan};
use interop::Loads;
pub use statistics::{listed, needs_inputs, settle_unseen};
use std::collections::BTreeSet;
use std::path::Path;
pub use storage::keeps_blocks;
pub use topology::topology_of;
use untouched::untouched;

/// Plans the model, and the student if the recipe trains one.
///
/// The pipeline's `student_of` predicts the tensors of the student.
///
/// # Errors
/// See [`plan`].
pub fn plan_of<'a>(
    recipe: &Recipe,
    checkpoint: &'a Checkpoint,
    student: Option<&'a [TensorInfo]>,
    stop: &Stop,
) -> Result<Plan<'a>> {
    match student {
        None => plan(recipe, checkpoint, stop),
        Some(tensors) => {
            check_start(recipe, checkpoint)?;
            in_place::check(recipe, checkpoint)?;
            let plan = student::plan(recipe, checkpoint, tensors, stop)?;
            check_scales(recipe, checkpoint, &plan).map(|()| plan)
        }
    }
}

/// Plans what happens to each tensor of the model. If a recipe trains, its later stages are planned for the
/// student instead.
///
/// # Errors
/// - Config: a pattern, a group or N:M does not fit the model.
/// - Refused: the model is already quantized, or other programs would misread its codes.
/// - Interrupted: `stop` was set.
pub fn plan<'a>(recipe: &Recipe, checkpoint: &'a Checkpoint, stop: &Stop) -> Result<Plan<'a>> {
    check_start(recipe, checkpoint)?;
    in_place::check(recipe, checkpoint)?;
    let loads = recipe.profile.is_for_transformers().then(|| Loads::of(checkpoint)).transpose()?;
    let topology = topology_of(recipe, checkpoint)?;
    let mut plan = untouched(recipe, checkpoint, &topology, loads.as_ref())?;
    plan.check_axes()?;
    if loads.is_some() {
        interop::check_layout(&plan)?;
    }
    let spares_heads = heads::matter(recipe.file_stages());
    let mut ties = ties::ties_of(checkpoint, stop)?;
    let heads = if spares_heads { heads::of(&plan, &ties, checkpoint, &topology)? } else { BTreeSet::new() };
    choose::apply_stages(&mut plan, recipe.file_stages().enumerate(), &heads, loads.as_ref())?;
    plan.check_fit()?;
    in_place::settle(&mut plan)?;
    norms::link(&mut plan, &mut ties)?;
    if let Some(loads) = loads {
        plan.untested = loads.check(&plan, recipe)?;
    }
    choose::untie(&mut plan, recipe.file_stages(), &mut ties);
    let stores_once = plan.profile.keeps_ties_once();
    // A rewritten ONNX file keeps each of its initializers.
    if stores_once || plan.skeleton.is_none() {
        choose::tie(&mut plan, &ties, stores_once);
    }
    let is_entropy = if recipe.scales.is_some() { keeps_blocks(recipe, checkpoint) } else { recipe.codes_entropy };
    storage::choose(&mut plan, is_entropy);
    check_scales(recipe, checkpoint, &plan)?;
    statistics::take_in(&mut plan, recipe, checkpoint)?;
    Ok(plan)
}

/// Describes the calibration and the budget of a run. The remarks of a plan list deviations from the recipe.
pub fn notes(recipe: &Recipe, plan: &Plan) -> Vec<String> {
    let calibration = recipe.calibration.as_ref().map(calibrated_text);
    calibration.into_iter().chain(recipe.budget.as_ref().map(|budget| budget_text(plan, budget))).collect()
}

/// Describes the calibration data.
fn calibrated_text(calibration: &CalibrationRun) -> String {
    let data = shown_path(calibration.data.eval.as_deref().unwrap_or(Path::new("")));
    let how = if calibration.is_sequential { ", each block after the compressed blocks before it" } else { "" };
    format!("Calibrated on {data}: at most {} items{how}.", calibration.n_samples)
}

/// Describes the target of a budget.
pub fn target_text(target: &Target) -> String {
    match target {
        Target::Bytes(bytes) => format!("at most {bytes} bytes of weight files"),
        Target::Bits(bits) => format!("at most {bits} bits per weight"),
        Target::Metrics(bounds) => format!("{bounds} in the fewest bytes"),
    }
}

/// Describes the search of a budget.
fn budget_text(plan: &Plan, budget: &Budget) -> String {
    let is_open = |tensor: &&TensorPlan| tensor.quant.is_some_and(|quant| quant.spec.range == ScaleSearch::Step(None));
    let n = plan.tensors.iter().filter(is_open).count();
    let target = target_text(&budget.target);
    let how = match &budget.sensitivity {
        Sensitivity::Measured { n_samples, loss } => {
            let by = loss.map_or(String::new(), |loss| format!(", by {}", loss.name()));
            format!("by the loss on {n_samples} items with only one tensor quantized{by}")
        }
        Sensitivity::Gradient { n_samples } => format!("by gradients on {n_samples} items"),
        Sensitivity::Relative => "by relative errors of weights or outputs".into(),
        Sensitivity::File(path) => format!("by the losses in {}", shown_path(path)),
    };
    format!("The budget chooses step sizes of {n} tensors for {target}, {how}.")
}

/// Refuses a model that is already quantized, and role rules that match no tensor.
fn check_start(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    if checkpoint.compressed() == Compressed::Quantized && recipe.file_stages().next().is_some() {
        let message = "the model is already quantized; compress the original, or export this model to dense first with `briquette export`";
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    let has_stages = recipe.file_stages().next().is_some() || !recipe.parts.is_empty() || recipe.scales.is_some();
    // Only a copy of the file has the nodes that decode them.
    if (has_stages || recipe.profile != OutputFormat::Onnx) && checkpoint.has_codes_of_nodes()? {
        let message = "the model is already quantized: its nodes decode codes of weights; start from the model that it was made from";
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    if let Some(method) = checkpoint.quantized_by() {
        let message = format!(
            "the model is already quantized ({method}), which Briquette cannot decode; start from the original weights"
        );
        return Err(Error::refused(message).at(checkpoint.path().display()));
    }
    check_rules(recipe, checkpoint.tensors())
}

/// Refuses a training of scales without codes whose scales can be trained, or with the quantized model as its teacher.
fn check_scales(recipe: &Recipe, checkpoint: &Checkpoint, plan: &Plan) -> Result<()> {
    let Some(stage) = &recipe.scales else { return Ok(()) };
    if checkpoint.compressed() == Compressed::Quantized && stage.teacher.is_none() && stage.has_teacher() {
        let message = "missing, and the recipe's model is the quantized one; set the original model";
        return Err(Error::config(message).at("teacher"));
    }
    let stored = checkpoint.stored().into_iter().flat_map(|stored| &stored.tensors);
    let stored = stored.filter_map(|tensor| Some(tensor.coding.codes?.scale));
    let planned = plan.tensors.iter().filter_map(|tensor| Some(tensor.quant?.spec.scale));
    // The tensors after a factorization are not known yet.
    let is_open = recipe.parts.iter().any(|part| part.then.kind() == StageKind::Factorize)
        && recipe.stages.iter().any(|stage| matches!(stage, Stage::Quantize(_)));
    if is_open || stored.chain(planned).any(|scale| scale != ScaleType::Log8) {
        return Ok(());
    }
    let message =
        "found no codes whose scales can be trained; put a quantize stage before it, or start from a quantized model";
    Err(Error::config(message).at("train"))
}

/// Refuses role rules that match no tensor.
fn check_rules(recipe: &Recipe, tensors: &[TensorInfo]) -> Result<()> {
    let names = tensors.iter().map(|info| info.name.as_str());
    recipe
        .roles
        .iter()
        .try_for_each(|rule| rule.patterns.check_used("tensor", names.clone()).map_err(|error| error.at("model.roles")))
}
