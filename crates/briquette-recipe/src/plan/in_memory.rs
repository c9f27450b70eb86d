//! Plans the tensors of a module in memory.

use crate::plan::role::RoleContext;
use crate::plan::statistics::{needs_inputs, view_of};
use crate::plan::untouched::untouched_tensors;
use crate::plan::{check_rules, choose, heads, norms};
use crate::{Recipe, Stage, StageKind};
use briquette_core::{Error, InputStats, OutputAxis, Result, Role};
use briquette_formats::model_config::ModelFamily;
use briquette_formats::{OutputFormat, TensorSource, WeightLayout};
use briquette_writer::known::{Known, Reason};
use briquette_writer::plan::Nonfinite;
use briquette_writer::ties::ties_of;
use briquette_writer::{Plan, Stop};
use std::collections::{BTreeMap, BTreeSet};

/// Known facts about tensors in memory, beside their names and shapes.
#[derive(Debug, Clone, Copy)]
pub struct InMemory<'a> {
    /// The layout of Linear weights.
    pub layout: WeightLayout,
    /// The role and output axis of each tensor, in the order of the source, if its layer shows them.
    pub shown: &'a [Option<(Role, OutputAxis)>],
    /// Input statistics of layers by path, for scores that use them.
    pub inputs: &'a BTreeMap<String, InputStats>,
}

/// Plans what happens to each tensor, with the same functions as for files.
///
/// The role of a tensor comes from the recipe, else from its layer, else from its name.
///
/// # Errors
/// - Config: a stage works on files only, or a pattern, a group or N:M does not fit.
/// - Config: statistics are missing or of another size.
/// - Refused: the output axis of a tensor is unknown.
/// - Input or Io: a tensor cannot be read.
pub fn plan_in_memory<'a>(recipe: &Recipe, source: &'a dyn TensorSource, about: &InMemory) -> Result<Plan<'a>> {
    check_stages(recipe)?;
    let InMemory { layout, shown, inputs } = *about;
    check_rules(recipe, source.tensors())?;
    let roles = RoleContext::new(source.tensors(), no_family(), Some(layout), &recipe.roles);
    let known = |index: usize, info: &_| {
        let known = roles.of(info);
        match shown[index] {
            Some((role, axis)) if known.why != Reason::Told => Known { role, axis, why: Reason::Layer },
            _ => known,
        }
    };
    let nonfinite = if recipe.allow_nonfinite { Nonfinite::Left } else { Nonfinite::Refused };
    let mut plan = Plan::unchanged(source.tensors(), OutputFormat::Briquette, nonfinite);
    plan.tensors = untouched_tensors(source.tensors(), known);
    plan.layout = layout;
    plan.check_axes()?;
    let mut ties = ties_of(source, &Stop::default())?;
    let heads = if heads::matter(recipe.file_stages()) { heads::tied(&plan, &ties) } else { BTreeSet::new() };
    choose::apply_stages(&mut plan, recipe.file_stages().enumerate(), &heads, None)?;
    norms::leave_in_memory(&mut plan);
    plan.check_fit()?;
    choose::untie(&mut plan, recipe.file_stages(), &mut ties);
    choose::tie(&mut plan, &ties, true);
    plan.inputs = views(&plan, inputs)?;
    Ok(plan)
}

/// Refuses settings that a module in memory does not support.
fn check_stages(recipe: &Recipe) -> Result<()> {
    if recipe.stages.is_empty() && recipe.parts.is_empty() && recipe.scales.is_none() && recipe.evaluate.is_none() {
        return Err(Error::config("stage: the recipe has no stages; add prune() or quantize()"));
    }
    recipe.check_stages()?;
    if recipe.stages.iter().any(|stage| matches!(stage, Stage::Quantize(stage) if stage.has_static_activations())) {
        let message =
            "scheme: int8-static needs a run of the model on files; use `briquette compress`, or int8-dynamic";
        return Err(Error::config(message));
    }
    if recipe.stages.iter().any(|stage| matches!(stage, Stage::Quantize(stage) if stage.is_open())) {
        return Err(Error::config("scheme: found step without a size; write it, as in \"step0.01\""));
    }
    let looks_before = |stage: &Stage| stage.shares_by_outliers() || stage.scales_columns() || stage.corrects_biases();
    let runs = |stage: &Stage| stage.updates_weights() || looks_before(stage);
    if recipe.stages.iter().any(runs) {
        let message = "modules in memory do not support sparsegpt, admm, gptq, owl, column_scales and bias_correction; export the \
                       module, and compress the files";
        return Err(Error::config(message));
    }
    if recipe.memory_limit.is_some() {
        return Err(Error::config("memory.limit: a module is in memory already; remove it"));
    }
    let whole =
        recipe.parts.first().map(|part| part.then.kind()).or(recipe.scales.as_ref().map(|_| StageKind::Distill));
    let casts = recipe.stages.iter().find(|stage| matches!(stage, Stage::Cast(_))).map(Stage::kind);
    let evaluates = recipe.evaluate.is_some().then_some(StageKind::Evaluate);
    if let Some(kind) = whole.or(casts).or(evaluates) {
        let message = match kind {
            StageKind::Cast => "a module keeps its float type; remove the stage, or cast the module",
            _ => "modules in memory support prune and quantize stages only; remove the stage, or export the module",
        };
        return Err(Error::config(message)
            .at(format_args!("{} {kind} stage", if kind == StageKind::Evaluate { "an" } else { "a" })));
    }
    match recipe.profile {
        OutputFormat::Briquette => Ok(()),
        _ => Err(Error::config(
            "output.format: a module in memory is exported in Briquette's own format; remove it, and convert what was \
             exported",
        )),
    }
}

/// Returns no family, because a module has no `config.json`.
fn no_family() -> ModelFamily {
    ModelFamily::default()
}

/// Returns the statistics of every tensor whose score or range needs them.
fn views(plan: &Plan, inputs: &BTreeMap<String, InputStats>) -> Result<BTreeMap<usize, briquette_core::InputView>> {
    let judged = plan.tensors.iter().filter(|tensor| needs_inputs(tensor) && tensor.tied_to().is_none());
    judged.map(|tensor| Ok((tensor.index(), view_of(tensor, inputs)?))).collect()
}
