//! Statistics of the inputs that columns of tensors see, for stages whose scores use them.

use crate::{Recipe, Stage};
use briquette_core::{Error, InputStats, InputView, Result, Role};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::StatisticsFile;
use briquette_methods::prune::Score;
use briquette_methods::quant::{Rounding, ScaleSearch};
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, Pruning, Solve, TensorPlan};
use std::collections::{BTreeMap, BTreeSet};

/// Gives a plan the input statistics that its stages name, for the tensors that these stages chose.
///
/// A table that is looked up has none: its range is found without. A layer that the file lacks is treated as by
/// [`settle_unseen`].
///
/// # Errors
/// Input where a file does not hold statistics, is of another model, has none of the layers, or has another number of inputs; Io.
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
            let message = format!("two stages have different statistics for {name:?}; name one file in both");
            return Err(Error::config(message).at("statistics"));
        }
        plan.inputs.extend(views);
    }
    Ok(())
}

/// Decides without inputs about the tensors that `is_unseen` takes, and adds a remark that names them.
///
/// Their weights are dropped by magnitude, get the range of least error, and are rounded to nearest. A remark is not an error: nothing that
/// runs has these weights, such as a pooler beside mean pooling.
pub fn settle_unseen(plan: &mut Plan, is_unseen: impl Fn(&TensorPlan) -> bool) {
    let (mut names, mut shared) = (Vec::new(), SharedTreatments::default());
    let is_unseen = |tensor: &TensorPlan| (needs_inputs(tensor) || tensor.solve.moves()) && is_unseen(tensor);
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.tied_to().is_none() && is_unseen(tensor)) {
        let prune = tensor.prune.map(|prune| match prune.score.needs_inputs() {
            true => Pruning { score: Score::Magnitude, ..prune },
            false => prune,
        });
        (tensor.prune, tensor.solve) = (prune, Solve::default());
        if let Some(quant) = tensor.quant.as_mut().filter(|quant| quant.spec.range.needs_inputs()) {
            quant.spec.range = ScaleSearch::Mse;
        }
        tensor.share(&mut shared);
        names.push((layer_of(tensor).to_string(), how_settled(tensor)));
    }
    let hows: BTreeSet<&str> = names.iter().map(|(_, how)| *how).collect();
    for how in hows {
        let of_how: Vec<&str> = names.iter().filter(|(_, its)| *its == how).map(|(name, _)| name.as_str()).collect();
        plan.remarks.push(format!("{} ran on none of the calibration data: weights are {how}.", listed(&of_how)));
    }
}

/// How weights are decided about without inputs, in words.
fn how_settled(tensor: &TensorPlan) -> &'static str {
    match (tensor.prune.is_some(), tensor.quant.is_some()) {
        (true, true) => "dropped by magnitude and rounded to nearest",
        (true, false) => "dropped by magnitude",
        (false, _) => "rounded to nearest",
    }
}

/// The first few names of layers, and how many more there are.
pub fn listed(names: &[&str]) -> String {
    const N: usize = 3;
    let more = names.len().saturating_sub(N);
    let more = if more > 0 { format!(" and {more} more layers") } else { String::new() };
    format!("{}{more}", names[..names.len().min(N)].join(", "))
}

/// Whether a stage decides about a tensor by its inputs.
fn looks_at_inputs(stage: &Stage, tensor: &TensorPlan) -> bool {
    match stage {
        Stage::Prune(stage) => tensor.prune.is_some_and(|prune| {
            let is_of_it = prune.score == stage.score && tensor.solve.reconstruction == stage.reconstruction;
            is_of_it && (prune.score.needs_inputs() || stage.reconstruction.is_some())
        }),
        Stage::Quantize(_) => fits_by_inputs(tensor) || tensor.solve.rounding == Rounding::Gptq,
        Stage::Cast(_) => false,
    }
}

/// Refuses statistics that have none of the layers that a stage decides about by their inputs.
fn check_any_seen(plan: &Plan, stage: &Stage, layers: &BTreeMap<String, InputStats>) -> Result<()> {
    let mut chosen = plan.tensors.iter().filter(|tensor| tensor.tied_to().is_none() && looks_at_inputs(stage, tensor));
    let Some(first) = chosen.clone().next() else { return Ok(()) };
    match chosen.any(|tensor| layers.contains_key(layer_of(tensor))) {
        true => Ok(()),
        false => view_of(first, layers).map(drop),
    }
}

/// Whether a tensor's score or range looks at its inputs.
pub fn needs_inputs(tensor: &TensorPlan) -> bool {
    tensor.prune.is_some_and(|prune| prune.score.needs_inputs()) || fits_by_inputs(tensor)
}

fn fits_by_inputs(tensor: &TensorPlan) -> bool {
    tensor.quant.is_some_and(|quant| quant.spec.range.needs_inputs()) && tensor.role != Role::Embedding
}

/// The name of the layer that a tensor is the weight of.
fn layer_of<'t>(tensor: &'t TensorPlan) -> &'t str {
    let name = tensor.info.name.as_str();
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The input statistics of one tensor; files name them by the path of the layer.
pub(crate) fn view_of(tensor: &TensorPlan, layers: &BTreeMap<String, InputStats>) -> Result<InputView> {
    let (name, layer) = (&tensor.info.name, layer_of(tensor));
    let Some(stats) = layers.get(layer) else {
        let message = format!(
            "has no statistics of the inputs of {layer:?}; gather them too, or exclude {name:?} from the stage"
        );
        return Err(Error::input(message));
    };
    let (found, expected) = (stats.n_inputs(), tensor.output_rows.n_cols);
    if found != expected {
        return Err(Error::input(format!("has statistics of {found} inputs of {layer:?}, expected {expected}")));
    }
    Ok(stats.view())
}
