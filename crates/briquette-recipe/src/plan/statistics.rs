//! Input statistics for stages whose methods need them.

use crate::{Recipe, Stage};
use briquette_core::{Error, InputStats, InputView, Result, Role};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_methods::prune::Score;
use briquette_methods::quant::{QuantSpec, Rounding, ScaleSearch};
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, Pruning, Solve, TensorPlan};
use std::collections::{BTreeMap, BTreeSet};

/// Adds the input statistics of each stage's file for the tensors that the stage selected.
///
/// Embeddings have no input statistics; their range is found without them. See [`settle_unseen`] for layers
/// that the file lacks.
///
/// # Errors
/// - Input: a file is not a statistics file, is of another model, or has none of the layers or another number of inputs.
/// - Config: two stages have different statistics for a tensor.
/// - Io: a file cannot be read.
pub(crate) fn take_in(plan: &mut Plan, recipe: &Recipe, checkpoint: &Checkpoint) -> Result<()> {
    for stage in recipe.file_stages() {
        let path = match stage {
            Stage::Prune(stage) => &stage.statistics,
            Stage::Quantize(stage) => &stage.statistics,
            _ => continue,
        };
        let Some(path) = path else { continue };
        let file = StatisticsFile::read(path)?;
        file.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
        check_any_seen(plan, stage, &file.layers).map_err(|error| error.at(path.display()))?;
        settle_unseen(plan, |tensor| looks_at_inputs(stage, tensor) && !file.layers.contains_key(layer_of(tensor)));
        let is_judged = |tensor: &&TensorPlan| match stage {
            Stage::Prune(stage) => tensor.prune.is_some_and(|prune| prune.score == stage.score),
            _ => fits_by_inputs(tensor),
        };
        let is_seen = |tensor: &&TensorPlan| file.layers.contains_key(layer_of(tensor));
        let chosen = plan.tensors.iter().filter(is_judged).filter(|tensor| tensor.tied_to().is_none());
        let views = chosen.filter(is_seen).map(|tensor| {
            Ok((tensor.index(), view_of(tensor, &file.layers).map_err(|error| error.at(path.display()))?))
        });
        let views = views.collect::<Result<BTreeMap<usize, InputView>>>()?;
        let differs = |(index, view): (&usize, &InputView)| plan.inputs.get(index).is_some_and(|known| known != view);
        if let Some((index, _)) = views.iter().find(|&found| differs(found)) {
            let name = &plan.tensors[*index].info.name;
            let message = format!("two stages have different statistics for {name:?}; set the same file in both");
            return Err(Error::config(message).at("statistics"));
        }
        plan.inputs.extend(views);
    }
    Ok(())
}

/// Plans tensors that have no input statistics without them, and adds a remark that lists them.
///
/// Their weights are pruned by magnitude, get the range with the least error, and are rounded to the nearest.
/// This is not an error, because no run uses these weights, such as a pooler with mean pooling.
pub fn settle_unseen(plan: &mut Plan, is_unseen: impl Fn(&TensorPlan) -> bool) {
    let (mut names, mut shared) = (Vec::new(), SharedTreatments::default());
    let is_unseen = |tensor: &TensorPlan| (needs_inputs(tensor) || tensor.solve.moves()) && is_unseen(tensor);
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.tied_to().is_none() && is_unseen(tensor)) {
        let prune = tensor.prune.map(|prune| match prune.score.needs_inputs() {
            true => Pruning { score: Score::Magnitude, ..prune },
            false => prune,
        });
        (tensor.prune, tensor.solve) = (prune, Solve::default());
        if let Some(quant) = &mut tensor.quant {
            quant.spec = QuantSpec { has_columns: false, ..quant.spec.without_trellis() };
            if quant.spec.range.needs_inputs() {
                quant.spec.range = ScaleSearch::Mse;
            }
        }
        tensor.share(&mut shared);
        names.push((layer_of(tensor).to_string(), how_settled(tensor)));
    }
    let hows: BTreeSet<&str> = names.iter().map(|(_, how)| *how).collect();
    for how in hows {
        let of_how: Vec<&str> = names.iter().filter(|(_, its)| *its == how).map(|(name, _)| name.as_str()).collect();
        plan.remarks.push(format!("The calibration observed no inputs of {}: weights are {how}.", listed(&of_how)));
    }
}

/// Describes how weights are treated without input statistics.
fn how_settled(tensor: &TensorPlan) -> &'static str {
    match (tensor.prune.is_some(), tensor.quant.is_some()) {
        (true, true) => "pruned by magnitude and rounded to nearest",
        (true, false) => "pruned by magnitude",
        (false, _) => "rounded to nearest",
    }
}

/// Returns the first few names of layers, and the number of the others.
pub fn listed(names: &[&str]) -> String {
    const N: usize = 3;
    let more = match names.len().saturating_sub(N) {
        0 => String::new(),
        1 => " and 1 more layer".into(),
        n => format!(" and {n} more layers"),
    };
    format!("{}{more}", names[..names.len().min(N)].join(", "))
}

/// Returns whether a stage needs input statistics for a tensor.
fn looks_at_inputs(stage: &Stage, tensor: &TensorPlan) -> bool {
    match stage {
        Stage::Prune(stage) => tensor.prune.is_some_and(|prune| {
            let is_of_it = prune.score == stage.score && tensor.solve.reconstruction == stage.reconstruction;
            is_of_it && (prune.score.needs_inputs() || stage.reconstruction.is_some())
        }),
        Stage::Quantize(_) => fits_by_inputs(tensor) || tensor.solve.rounding == Rounding::Gptq || tensor.solve.learns,
        Stage::Cast(_) => false,
    }
}

/// Refuses statistics that have none of the layers that a stage needs.
fn check_any_seen(plan: &Plan, stage: &Stage, layers: &BTreeMap<String, InputStats>) -> Result<()> {
    let mut chosen = plan.tensors.iter().filter(|tensor| tensor.tied_to().is_none() && looks_at_inputs(stage, tensor));
    let Some(first) = chosen.clone().next() else { return Ok(()) };
    match chosen.any(|tensor| layers.contains_key(layer_of(tensor))) {
        true => Ok(()),
        false => view_of(first, layers).map(drop),
    }
}

/// Returns whether a tensor's score or range needs input statistics.
pub fn needs_inputs(tensor: &TensorPlan) -> bool {
    tensor.prune.is_some_and(|prune| prune.score.needs_inputs()) || fits_by_inputs(tensor)
}

fn fits_by_inputs(tensor: &TensorPlan) -> bool {
    let looks = |spec: QuantSpec| spec.range.needs_inputs() || spec.has_columns;
    tensor.quant.is_some_and(|quant| !quant.is_given && looks(quant.spec)) && tensor.role != Role::Embedding
}

/// Returns the name of the tensor's layer.
fn layer_of<'t>(tensor: &'t TensorPlan) -> &'t str {
    let name = tensor.info.name.as_str();
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Returns the input statistics of a tensor. Files have them by the path of the layer.
pub(crate) fn view_of(tensor: &TensorPlan, layers: &BTreeMap<String, InputStats>) -> Result<InputView> {
    let (name, layer) = (&tensor.info.name, layer_of(tensor));
    let Some(stats) = layers.get(layer) else {
        let message =
            format!("has no input statistics of {layer:?}; gather them too, or exclude {name:?} from the stage");
        return Err(Error::input(message));
    };
    let (found, expected) = (stats.n_inputs(), tensor.output_rows.n_cols);
    if !tensor.takes(stats) {
        return Err(Error::input(format!("has statistics of {found} inputs of {layer:?}, expected {expected}")));
    }
    Ok(stats.view())
}
