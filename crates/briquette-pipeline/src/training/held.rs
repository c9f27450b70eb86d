//! The parts of a student that stay in place while it trains: zeros, grids and frozen weights.

use crate::training::learner::Learner;
use briquette_core::{DType, Error, Result};
use briquette_core::{Role, RoleRule};
use briquette_distill::Rate;
use briquette_formats::model_config::ModelFamily;
use briquette_formats::{ActivationGrids, Checkpoint, TensorInfo, WeightLayout};
use briquette_methods::quant::{Activations, ScaleSearch};
use briquette_nn::{Compression, Kind, NameMap, Parameter, Patterns, Prune, Quantize, Schedule, parameters};
use briquette_recipe::plan::role::RoleContext;
use briquette_recipe::{DistillStage, Gradual, Selection, SparsityCourse, Student, TrainingJob};
use briquette_writer::RunOptions;
use std::collections::{BTreeMap, BTreeSet};

/// The number of steps after which scales are refitted to changed weights. Codes on a trellis are chosen at every step.
const STEPS_PER_SCALE: usize = 10;
/// The path prefix of parameters in a learner, which the network itself lacks.
const PREFIX: &str = "network.";

/// A parameter of the student, with its tensor's name and role.
pub(crate) struct StudentTensor {
    path: String,
    name: String,
    role: Role,
    is_matrix: bool,
}

/// Returns the parameters of a student's network with their names in its checkpoint.
pub(crate) fn named(student: &Learner, names: &NameMap, roles: &[RoleRule]) -> Result<Vec<StudentTensor>> {
    let is_of_network = |parameter: &Parameter| parameter.kind == Kind::Float && parameter.path.starts_with(PREFIX);
    let floats: Vec<Parameter> = parameters(student).into_iter().filter(is_of_network).collect();
    let info = |parameter: &Parameter| {
        let own = parameter.path.strip_prefix(PREFIX).unwrap_or(&parameter.path).to_string();
        let name = names.file_name(&Parameter { path: own, ..parameter.clone() });
        TensorInfo::checked(name, DType::F32, parameter.shape.0.clone())
    };
    let infos: Vec<TensorInfo> = floats.iter().map(info).collect::<Result<_>>()?;
    let known = RoleContext::new(&infos, ModelFamily::default(), Some(WeightLayout::Burn), roles)
        .with_graph(student.network.graph());
    let one = |(parameter, info): (Parameter, &TensorInfo)| StudentTensor {
        is_matrix: parameter.shape.rank() >= 2,
        path: parameter.path,
        name: info.name.to_string(),
        role: known.of(info).role,
    };
    Ok(floats.into_iter().zip(&infos).map(one).collect())
}

/// Returns rules for paths after `prefix`: zeros stay zero, gradual pruning adds more, and quantized weights
/// are fake-quantized.
///
/// `heads` are embeddings that are also the head, and `grids` those of static activations.
pub(crate) fn rules(
    stage: &DistillStage,
    pruned: &[&Selection],
    named: &[StudentTensor],
    (heads, grids): (&BTreeSet<String>, Option<&ActivationGrids>),
    n_steps: usize,
    prefix: &str,
) -> Result<Compression> {
    let at = |path: &str| format!("{prefix}{path}");
    let mut rules = Compression::new();
    let matrices = || named.iter().filter(|named| named.is_matrix);
    let chooses = |selection: &Selection, named: &&StudentTensor| selection.chooses(&named.name, named.role);
    let is_pruned = |named: &&StudentTensor| pruned.iter().any(|selection| chooses(selection, named));
    for named in matrices().filter(is_pruned) {
        rules = rules.prune(Prune::zeros(&at(&named.path))?);
    }
    if let Some(gradual) = &stage.gradual {
        let selection = &gradual.selection;
        let names = || named.iter().map(|named| named.name.as_str());
        for patterns in selection.include.iter().chain([&selection.exclude]) {
            patterns.check_used("tensor", names()).map_err(|error| error.at("prune"))?;
        }
        let paths: Vec<String> =
            matrices().filter(|named| chooses(selection, named)).map(|named| at(&named.path)).collect();
        rules = gradually(rules, gradual, &paths, pruned, n_steps)?;
    }
    if let Some(quantize) = &stage.quantize {
        for named in matrices().filter(|named| chooses(&quantize.selection, named)) {
            let mut scheme = quantize.scheme_for(&named.name, heads.contains(&named.name));
            if matches!(scheme.weights.range, ScaleSearch::StepByFrequency(_)) && stage.freeze.matches(&named.name) {
                // It is rounded already.
                continue;
            }
            if scheme.activations == Activations::Static {
                scheme.activations = of_static_layer(named, grids);
            }
            let n_steps = if scheme.weights.has_trellis { 1 } else { STEPS_PER_SCALE };
            let every = Schedule::constant(0..usize::MAX).every(n_steps);
            rules = rules.quantize(Quantize::with_scheme(&at(&named.path), scheme)?.on(every));
        }
    }
    Ok(rules)
}

/// Returns the rounding of a layer's inputs where the network does not round them to a fixed grid.
fn of_static_layer(named: &StudentTensor, grids: Option<&ActivationGrids>) -> Activations {
    let is_layer = matches!(named.role, Role::Linear | Role::Conv);
    let has_others = grids.is_some_and(|grids| !grids.layers.is_empty() && !grids.layers.contains_key(&named.name));
    if is_layer && has_others { Activations::DynamicAsymmetric } else { Activations::Float }
}

/// Returns the names of weights whose layers are trained with static activations.
pub(crate) fn static_weights(stage: &DistillStage, named: &[StudentTensor]) -> BTreeSet<String> {
    let Some(quantize) = &stage.quantize else { return BTreeSet::new() };
    let is_static = |named: &&StudentTensor| {
        matches!(named.role, Role::Linear | Role::Conv)
            && quantize.selection.chooses(&named.name, named.role)
            && quantize.scheme_for(&named.name, false).activations == Activations::Static
    };
    named.iter().filter(is_static).map(|named| named.name.clone()).collect()
}

/// Chooses the grids of activations from the calibration data; `None` if no layer has static activations.
///
/// # Errors
/// Config: the student is smaller than its model. See [`grids_of`](crate::activation_grids::grids_of) for others.
pub(crate) fn activation_grids(
    job: &TrainingJob,
    named: &[StudentTensor],
    start: &Checkpoint,
    options: &RunOptions,
) -> Result<Option<ActivationGrids>> {
    let weights = static_weights(job.stage, named);
    let Some(calibration) = job.calibration.filter(|_| !weights.is_empty()) else { return Ok(None) };
    if job.stage.student != Student::Same {
        let message =
            "int8-static trains a student of the model's own size; train the smaller student in a recipe of its own";
        return Err(Error::config(message).at("quantization_aware"));
    }
    crate::activation_grids::grids_of(&weights, calibration, start, options).map(Some)
}

/// Returns the step sizes of rounded weights by path, if the stage has a rate loss.
///
/// # Errors
/// Config: no weight has a step size.
pub(crate) fn rate(stage: &DistillStage, named: &[StudentTensor], heads: &BTreeSet<String>) -> Result<Option<Rate>> {
    let Some((weight, quantize)) = stage.rate.zip(stage.quantize.as_ref()) else { return Ok(None) };
    let step = |named: &StudentTensor| {
        // Codes on a trellis take about as many bits as plain codes with a step of twice the size.
        match quantize.scheme_for(&named.name, heads.contains(&named.name)).weights.without_trellis().range {
            ScaleSearch::Step(Some(step)) => Some((named.path.clone(), f64::from(step))),
            _ => None,
        }
    };
    let chosen = named.iter().filter(|named| named.is_matrix && quantize.selection.chooses(&named.name, named.role));
    let steps: BTreeMap<String, f64> = chosen.filter_map(step).collect();
    match steps.is_empty() {
        true => Err(Error::config("rate: no weight has a step size; quantize with a step scheme, or remove it")),
        false => Ok(Some(Rate { weight, steps })),
    }
}

/// Adds rules of gradual pruning.
fn gradually(
    mut rules: Compression,
    gradual: &Gradual,
    paths: &[String],
    pruned: &[&Selection],
    n_steps: usize,
) -> Result<Compression> {
    if paths.is_empty() {
        return Err(Error::config("prune: chooses no tensor of the student; choose some with include"));
    }
    if !pruned.is_empty() {
        // Until the schedule begins, existing zeros would not stay zero.
        let message = "prune: an earlier stage prunes already; remove one of them";
        return Err(Error::config(message));
    }
    let steps = gradual.steps(n_steps);
    let schedule = match gradual.course {
        SparsityCourse::Constant => Schedule::constant(steps),
        SparsityCourse::Linear => Schedule::linear(steps),
        SparsityCourse::Cubic => Schedule::cubic(steps),
    };
    let (schedule, sparsity) = (schedule.every(gradual.every), gradual.sparsity.get());
    if gradual.is_global {
        return Ok(rules.prune(Prune::each(paths, sparsity)?.globally().on(schedule)));
    }
    for path in paths {
        rules = rules.prune(Prune::new(path, sparsity)?.on(schedule));
    }
    Ok(rules)
}

/// Returns the paths of frozen parameters, from globs over tensor names.
pub(crate) fn frozen(stage: &DistillStage, named: &[StudentTensor]) -> Result<Patterns> {
    stage
        .freeze
        .check_used("tensor", named.iter().map(|named| named.name.as_str()))
        .map_err(|error| error.at("freeze"))?;
    let is_frozen = |named: &&StudentTensor| stage.trains_scales || stage.freeze.matches(&named.name);
    let paths: Vec<&str> = named.iter().filter(is_frozen).map(|named| named.path.as_str()).collect();
    if paths.len() == named.len() && !stage.trains_scales {
        return Err(Error::config("freeze: no tensor is left to train; freeze fewer tensors"));
    }
    Patterns::new(paths)
}
