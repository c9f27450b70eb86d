//! `plan`: what would become of each tensor, as a table or as JSON.

use super::args::{Common, What};
use super::commands::{recipe_of, show};
use super::{batch, tables};
use briquette::pipeline::Stop;
use briquette::pipeline::batch::Document;
use briquette::pipeline::inspect::notes_of;
use briquette::pipeline::memory::Needs;
use briquette::pipeline::plan::{Cut, TensorPlan};
use briquette::{Error, Plan, Result};
use serde_json::{Value, json};
use std::path::Path;

/// Plans a model, a recipe (up to what makes other tensors of its) or a jobs file. Writes nothing.
pub(super) fn plan(common: &Common, model: &Path, what: &What) -> Result<u8> {
    let is_recipe = model.extension().is_some_and(|extension| extension == "toml");
    if is_recipe && *what != What::default() {
        let message = "is a recipe, which says by itself what to do; flags such as --quantize are for a model";
        return Err(Error::config(message).at(model.display()));
    }
    let recipe = match is_recipe.then(|| Document::from_file(model)).transpose()? {
        Some(Document::Jobs(jobs)) => return batch::plan(common, &jobs),
        Some(Document::Recipe(recipe)) => *recipe,
        None => recipe_of(Some(model), Some(Path::new("-")), what)?,
    };
    let checkpoint = recipe.open_model()?;
    let plan = Plan::new(&recipe, &checkpoint, &Stop::default())?;
    let prediction = plan.predict()?;
    let tensors = plan.tensors.iter().map(|tensor| tensor_json(tensor, &plan)).collect::<Result<Vec<Value>>>()?;
    let (needs, notes) = (Needs::of(&recipe, &common.device)?, notes_of(&checkpoint));
    let value = json!({
        "model": recipe.model, "file_bytes": checkpoint.weight_bytes(), "predicted_bytes": prediction.n_bytes,
        "prediction_is_exact": prediction.is_exact, "memory": needs, "notes": notes, "tensors": tensors,
    });
    let text = || Ok(tables::plan(&plan, checkpoint.weight_bytes())? + &tables::notes(&notes) + &tables::needs(&needs));
    show(common, &value, text)?;
    needs.check().map(|()| 0)
}

/// `predicted_bytes` are those of the tensor's parts, without its share of the file's header; a tied one has none.
fn tensor_json(tensor: &TensorPlan, plan: &Plan) -> Result<Value> {
    let (n_bytes, is_exact) = plan.predict_tensor(tensor)?;
    Ok(json!({
        "name": tensor.info.name, "role": tensor.role, "dtype": tensor.info.dtype, "shape": tensor.info.shape,
        "prune": tensor.prune.map(|prune| cut_json(prune.cut, tensor, plan)),
        "quantize": tensor.quant.map(|quant| format!("{}-bit {}", quant.spec.grid.n_bits(), quant.spec.grouping)),
        "cast": tensor.cast,
        "tied_to": tensor.tied_to.map(|main| &plan.tensors[main].info.name),
        "skipped": tensor.skipped,
        "predicted_bytes": n_bytes, "prediction_is_exact": is_exact,
    }))
}

fn cut_json(cut: Cut, tensor: &TensorPlan, plan: &Plan) -> Value {
    match cut {
        Cut::Count(n_drop) => {
            json!({ "scope": "layer", "sparsity": n_drop as f64 / tensor.info.n_elements().max(1) as f64 })
        }
        Cut::Pool(pool) => json!({ "scope": "global", "sparsity": plan.pools[pool].ratio.get() }),
        Cut::NOfM { n, m } => json!({ "pattern": format!("{n}:{m}") }),
    }
}
