//! The stage that factorizes linear layers.
//!
//! `X.weight`, `[out, in]`, becomes `X.down.weight`, `[rank, in]`, and `X.weight`, `[out, rank]`; a bias stays
//! unchanged.

use super::changed::{ChangedModel, OutputTensor};
use super::network::{Network, Transform, Transformed};
use crate::report::FactorReport;
use briquette_core::{Error, OutputAxis, Result, rows};
use briquette_formats::{Checkpoint, OutputFormat, TensorInfo, TensorSource, WeightLayout};
use briquette_methods::prune::low_rank::{Factors, Spectrum};
use briquette_recipe::{FactorizeStage, Recipe};
use briquette_writer::context::Workers;
use briquette_writer::{Plan, TensorPlan};
use ndarray::ArrayView2;
use std::collections::BTreeSet;

/// The suffix of the name of a weight.
const SUFFIX: &str = ".weight";
/// The suffix of the name of the first factor.
const DOWN: &str = "down.weight";

impl Transform for FactorizeStage {
    fn report_file(&self) -> &'static str {
        "factorize.json"
    }

    /// Takes the memory of the factors, and of one layer in f64 per thread.
    fn apply<'a>(&self, network: &Network<'a>, workers: &Workers) -> Result<Transformed<'a>> {
        let (recipe, checkpoint) = (network.recipe, network.checkpoint);
        let plain = Recipe {
            parts: Vec::new(),
            stages: Vec::new(),
            budget: None,
            scales: None,
            profile: OutputFormat::Briquette,
            ..recipe.clone()
        };
        let plan = briquette_recipe::plan::plan(&plain, checkpoint, workers.stop())?;
        let chosen = chosen(self, &plan)?;
        workers.begin("factorize", chosen.iter().map(|tensor| tensor.info.n_bytes()).sum());
        let found = workers.map(
            &chosen,
            || (),
            |(), tensor| {
                let found = factors_of(self, tensor, checkpoint)?;
                workers.advance(tensor.info.n_bytes());
                Ok(found)
            },
        )?;
        let reports: Vec<FactorReport> =
            chosen.iter().zip(&found).map(|(tensor, factors)| report(tensor, factors)).collect();
        let report = serde_json::to_value(reports).map_err(|error| Error::bug(format!("the report: {error}")))?;
        let model = with_factors(checkpoint, &plan, &chosen, found)?;
        Ok(Transformed { model, graph: None, network: None, config: Vec::new(), report })
    }
}

/// Replaces each chosen matrix by its factors, if it has any.
fn with_factors<'a>(
    checkpoint: &'a Checkpoint,
    plan: &Plan,
    chosen: &[&TensorPlan],
    found: Vec<Option<Factors>>,
) -> Result<ChangedModel<'a>> {
    let mut tensors: Vec<(TensorInfo, OutputTensor)> = plan
        .tensors
        .iter()
        .map(|tensor| (TensorInfo::clone(tensor.info), OutputTensor::Copied(tensor.index())))
        .collect();
    for (tensor, factors) in chosen.iter().zip(found) {
        let Some(Factors { rank, up, down, .. }) = factors else { continue };
        let (TensorInfo { name, dtype, shape }, stem) = (tensor.info, stem(&tensor.info.name));
        let info = |name: String, shape: [usize; 2]| TensorInfo::checked(name, *dtype, shape.to_vec());
        tensors[tensor.index()] = (info(name.to_string(), [shape.0[0], rank])?, OutputTensor::Made(up));
        tensors.push((info(format!("{stem}down{SUFFIX}"), [rank, shape.0[1]])?, OutputTensor::Made(down)));
    }
    let (infos, tensors) = tensors.into_iter().unzip();
    Ok(ChangedModel { checkpoint, infos, tensors })
}

/// Returns the matrices that the stage chooses. Tied tensors are skipped: two factors besides the tied tensor
/// would not be smaller.
fn chosen<'a>(stage: &FactorizeStage, plan: &'a Plan) -> Result<Vec<&'a TensorPlan<'a>>> {
    if plan.layout == WeightLayout::Burn {
        let message =
            "found weights [in, out] in burn's layout, expected [out, in]; export the model to another format";
        return Err(Error::config(message).at("factorize"));
    }
    let selection = &stage.selection;
    let names = || plan.tensors.iter().map(|tensor| tensor.info.name.as_str());
    for patterns in selection.include.iter().chain([&selection.exclude]) {
        patterns.check_used("tensor", names())?;
    }
    let shared: BTreeSet<usize> = plan.tensors.iter().filter_map(|tensor| tensor.tied_to()).collect();
    let is_tied = |tensor: &TensorPlan| tensor.tied_to().is_some() || shared.contains(&tensor.index());
    let downs: BTreeSet<&str> = names().filter(|name| name.ends_with(DOWN)).collect();
    let is_layer_of = |tensor: &TensorPlan| {
        let (info, down) = (tensor.info, format!("{}down{SUFFIX}", stem(&tensor.info.name)));
        let is_layer =
            info.name.split('.').next_back() == Some("weight") && info.shape.rank() == 2 && info.n_elements() > 0;
        let is_factor = info.name.ends_with(".down.weight") || downs.contains(down.as_str());
        is_layer && !is_factor && selection.chooses(&info.name, tensor.role) && !is_tied(tensor)
    };
    let (chosen, turned): (Vec<&TensorPlan>, Vec<_>) =
        plan.tensors.iter().filter(|tensor| is_layer_of(tensor)).partition(|tensor| tensor.axis == OutputAxis::First);
    match chosen.is_empty() {
        true if !turned.is_empty() => {
            let message = format!("found weights [in, out], such as {}, expected [out, in]", turned[0].info.name);
            Err(Error::config(format!("{message}; remove the stage")).at("factorize"))
        }
        true => Err(Error::config("no linear layer is chosen; choose some with include").at("factorize")),
        false => Ok(chosen),
    }
}

/// Returns a name up to its last segment, with the dot.
fn stem(name: &str) -> &str {
    &name[..name.rfind('.').map_or(0, |dot| dot + 1)]
}

fn factors_of(stage: &FactorizeStage, tensor: &TensorPlan, checkpoint: &Checkpoint) -> Result<Option<Factors>> {
    let info = tensor.info;
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(tensor.index(), 0, &mut bytes)?;
    let mut weights = vec![0.0; info.n_elements()];
    rows::to_f32(&bytes, info.dtype, &mut weights);
    if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
        let message = format!("element {at} is {}, expected a finite number; exclude the tensor", weights[at]);
        return Err(Error::refused(message).at(format_args!("tensor {:?}", info.name)));
    }
    let [n_rows, n_cols] = [info.shape.0[0], info.shape.0[1]];
    let weights = ArrayView2::from_shape((n_rows, n_cols), &weights);
    let spectrum = Spectrum::of(weights.map_err(|error| Error::bug(format!("{}: {error}", info.name)))?);
    Ok(stage.rank.of(&spectrum.energies, n_rows, n_cols).map(|rank| spectrum.factors(rank)))
}

fn report(tensor: &TensorPlan, factors: &Option<Factors>) -> FactorReport {
    FactorReport {
        name: tensor.info.name.to_string(),
        shape: tensor.info.shape.0.clone(),
        rank: factors.as_ref().map(|factors| factors.rank),
        energy: factors.as_ref().map_or(1.0, |factors| factors.energy),
    }
}
