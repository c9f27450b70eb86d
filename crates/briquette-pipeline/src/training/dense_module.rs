//! The Dense module of a student whose embeddings have another width than the teacher's.

use briquette_core::{Error, Result};
use briquette_distill::{Blend, Loss, Match};
use briquette_formats::{ModelDir, limits};
use briquette_models::text::{DENSE_CLASS, DenseModule};
use briquette_models::{Input, LoadedModel};
use briquette_nn::layers::{Linear, LinearConfig};
use briquette_nn::module::read_f32;
use burn::tensor::Device;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The list of modules that sentence-transformers loads.
pub(crate) const MODULES: &str = "modules.json";
/// The directory of the new module.
const FOLDER: &str = "2_Dense";

/// Creates the layer that maps a student's embeddings to the teacher's width.
///
/// `None` if no loss compares embeddings by cosine, the widths are equal, or the student has a Dense module.
/// Source: Vujanic and Rueckstiess, "LEAF: Knowledge Distillation of Text Embedding Models with Teacher-Aligned
/// Representations", 2025, section 3.
pub(crate) fn layer(blend: &Blend, student: &LoadedModel, teacher: &LoadedModel, device: &Device) -> Option<Linear> {
    let compares = blend.terms().iter().any(|term| term.loss == Loss::Embedding(Match::Cosine));
    let (Input::Text { pooling: ours, .. }, Input::Text { pooling: theirs, .. }) = (&student.input, &teacher.input)
    else {
        return None;
    };
    let from = student.network.state_width();
    let to = theirs.dense.as_ref().map_or(teacher.network.state_width(), |dense| dense.widths()[1]);
    let is_needed = compares && ours.dense.is_none() && from != to;
    is_needed.then(|| LinearConfig::new(from, to).with_bias(false).init(device))
}

/// Returns a trained layer as a Dense module.
///
/// # Errors
/// - Refused: a weight is not finite.
/// - Io: a weight cannot be read from its device.
pub(crate) fn trained(layer: &Linear) -> Result<DenseModule> {
    let weight = layer.weight.val();
    let widths = weight.dims();
    let values = read_f32(weight, FOLDER)?;
    if values.iter().any(|value| !value.is_finite()) {
        let message = "found a weight that is not finite after the last training step; lower the learning rate";
        return Err(Error::refused(message).at(FOLDER));
    }
    Ok(DenseModule::new(values, widths))
}

/// Returns the files that add the layer to a model of sentence-transformers.
///
/// # Errors
/// - Input: `modules.json` of the model is damaged.
/// - See [`trained`].
pub(crate) fn files(layer: &Linear, model: &ModelDir) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let [width, _] = layer.weight.val().dims();
    let mut files = Vec::new();
    let path = Path::new(MODULES);
    let mut modules: Vec<Value> = match model.read(path, limits::MAX_JSON_BYTES)? {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            Error::input(format!("it is damaged: {error}")).at(model.path().join(MODULES).display())
        })?,
        None => {
            let pooling = json!({ "word_embedding_dimension": width, "pooling_mode_mean_tokens": true });
            files.push(("1_Pooling/config.json".into(), text(&pooling)?));
            vec![module("", "Transformer"), module("1_Pooling", "Pooling")]
        }
    };
    let is_last = |module: &Value| module["type"].as_str().is_some_and(|kind| kind.ends_with(".Normalize"));
    let place = modules.iter().position(is_last).unwrap_or(modules.len());
    modules.insert(place, json!({ "path": FOLDER, "type": DENSE_CLASS }));
    for (index, module) in modules.iter_mut().enumerate() {
        (module["idx"], module["name"]) = (json!(index), json!(index.to_string()));
    }
    files.push((path.into(), text(&Value::Array(modules))?));
    let own = trained(layer)?.files()?;
    files.extend(own.map(|(name, bytes)| (Path::new(FOLDER).join(name), bytes)));
    Ok(files)
}

fn module(path: &str, class: &str) -> Value {
    json!({ "path": path, "type": format!("sentence_transformers.models.{class}") })
}

fn text(value: &Value) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|error| Error::bug(format!("{MODULES}: {error}")))
}
