//! `plan`: shows what happens to each tensor, as a table or as JSON.

use super::asked::recipe_of;
use super::common::Common;
use super::options::options;
use super::show::{error_json, show_long};
use super::stage_flags::What;
use super::{batch, tables, tensor_tables};
use briquette::core::shown_path;
use briquette::pipeline::Stop;
use briquette::pipeline::batch::Document;
use briquette::pipeline::budget;
use briquette::pipeline::distill::student_of;
use briquette::pipeline::inspect::notes_of;
use briquette::pipeline::memory::Needs;
use briquette::pipeline::recipe::{ModelStage, RecipePart, Target};
use briquette::pipeline::report::AllocationReport;
use briquette::pipeline::transform;
use briquette::plan::{notes, plan_of};
use briquette::prune::SparsityPattern;
use briquette::writer::{Cut, TensorPlan};
use briquette::{Error, Plan, Result};
use serde::Serialize;
use serde::ser::{Error as _, SerializeSeq, Serializer};
use serde_json::{Value, json};
use std::path::Path;

/// Plans a model, a recipe or a jobs file; writes nothing.
///
/// The plan of a recipe that trains is for the student, and that of a recipe that shrinks for the smaller model. A plan
/// ends at the first factorize stage, and at a shrink stage whose shapes follow from weights.
pub(super) fn plan(common: &Common, model: &Path, what: &What, is_all: bool) -> Result<u8> {
    let is_recipe = is_recipe(model);
    if is_recipe && *what != What::default() {
        let message = "is a recipe, which has its own stages; flags such as --quantize are for models";
        return Err(Error::config(message).at(model.display()));
    }
    let recipe = match is_recipe.then(|| Document::from_file(model)).transpose()? {
        Some(Document::Jobs(_)) if is_all => {
            return Err(Error::config("--all lists tensors, but this is a jobs file; remove it").at(model.display()));
        }
        Some(Document::Jobs(jobs)) => return batch::plan(common, &jobs),
        Some(Document::Recipe(recipe)) => *recipe,
        None => recipe_of(Some(model), Some(Path::new("-")), what)?,
    };
    let checkpoint = briquette::pipeline::open::model(&recipe)?;
    let student = student_of(&recipe, &checkpoint)?;
    // A plan with a budget includes its step sizes.
    let allocation = match recipe.budget.as_ref().filter(|_| recipe.parts.is_empty() || recipe.learns_steps()) {
        Some(budget) => Some(budget::predicted(&recipe, budget, &options(common, false)?)?),
        None => None,
    };
    let plan = plan_of(&recipe, &checkpoint, student.as_deref(), &Stop::default())?;
    let mut prediction = plan.predict()?;
    // A plan that ends at a transform has the tensors before it, which do not become larger.
    let is_transform = |part: &RecipePart| matches!(part.then, ModelStage::Transform(_));
    prediction.is_exact &= student.is_some() || !recipe.parts.iter().any(is_transform);
    if let Some(&Target::Bytes(most)) = recipe.budget.as_ref().map(|budget| &budget.target) {
        prediction.n_bytes = prediction.n_bytes.min(most);
    }
    let needs = Needs::of(&recipe, &common.device)?;
    let shrunk = transform::notes(&recipe, &checkpoint)?;
    let notes = [shrunk, notes(&recipe, &plan), notes_of(&checkpoint)].concat();
    let (file_bytes, model) = (checkpoint.weight_bytes(), shown_path(&recipe.model));
    let check = needs.check();
    let shown = ShownPlan {
        error: check.as_ref().err().map(error_json),
        file_bytes,
        memory: &needs,
        model,
        predicted_bytes: prediction.n_bytes,
        prediction_is_exact: prediction.is_exact,
        tensors: PlannedTensors(&plan),
        unsure: plan.unsure().map(|tensor| tensor.info.name.as_str()).collect(),
        untested: plan.untested.as_deref(),
        remarks: &plan.remarks,
        notes: &notes,
        allocation: allocation.as_ref(),
    };
    show_long(common, &shown, |out| {
        tensor_tables::plan(out, &plan, (prediction, file_bytes), is_all)?;
        allocation.iter().try_for_each(|found| tensor_tables::allocation(out, found, is_all))?;
        notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
        out.write_all(tables::needs(&needs).as_bytes())
    })?;
    check.map(|()| 0)
}

/// Returns whether a path is a recipe or a jobs file.
pub(super) fn is_recipe(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// A plan as JSON.
#[derive(Serialize)]
struct ShownPlan<'a> {
    /// The reason why a run would be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    file_bytes: u64,
    memory: &'a Needs,
    model: String,
    predicted_bytes: u64,
    prediction_is_exact: bool,
    tensors: PlannedTensors<'a>,
    unsure: Vec<&'a str>,
    untested: Option<&'a str>,
    remarks: &'a [String],
    notes: &'a [String],
    /// The step sizes that the budget chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<&'a AllocationReport>,
}

/// The plans of all tensors, serialized one at a time because there may be millions.
struct PlannedTensors<'a>(&'a Plan<'a>);

impl Serialize for PlannedTensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tensors = serializer.serialize_seq(Some(self.0.tensors.len()))?;
        for tensor in &self.0.tensors {
            tensors.serialize_element(&tensor_json(tensor, self.0).map_err(S::Error::custom)?)?;
        }
        tensors.end()
    }
}

/// Returns the plan of a tensor. `predicted_bytes` excludes its share of the file header; a tied tensor has
/// none.
fn tensor_json(tensor: &TensorPlan, plan: &Plan) -> Result<Value> {
    let (n_bytes, is_exact) = plan.predict_tensor(tensor)?;
    Ok(json!({
        "name": tensor.info.name, "role": tensor.role, "why": tensor.why.words(), "dtype": tensor.info.dtype, "shape": *tensor.info.shape,
        "prune": tensor.prune.map(|prune| cut_json(prune.cut, tensor, plan)),
        "quantize": tensor.quant.map(|quant| format!("{}-bit {}", quant.spec.grid.n_bits(), quant.spec.grouping)),
        "cast": tensor.cast,
        "tied_to": tensor.tied_to().map(|main| &plan.tensors[main].info.name),
        "skipped": tensor.skipped,
        "predicted_bytes": n_bytes, "prediction_is_exact": is_exact,
    }))
}

fn cut_json(cut: Cut, tensor: &TensorPlan, plan: &Plan) -> Value {
    match cut {
        Cut::Pattern(SparsityPattern::Unstructured(n_drop)) => {
            json!({ "scope": "layer", "sparsity": n_drop as f64 / tensor.info.n_elements().max(1) as f64 })
        }
        Cut::Pool(pool) => json!({ "scope": "global", "sparsity": plan.pools[pool].ratio.get() }),
        Cut::Pattern(SparsityPattern::PerRow(n_drop)) => {
            let n_cols = tensor.rows().n_cols;
            json!({ "scope": "row", "inputs": n_cols, "sparsity": n_drop as f64 / n_cols.max(1) as f64 })
        }
        Cut::Given => json!({ "scope": "given" }),
        Cut::Pattern(SparsityPattern::NOfM { n, m }) => json!({ "pattern": format!("{n}:{m}") }),
    }
}
