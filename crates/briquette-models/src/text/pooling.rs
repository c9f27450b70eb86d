//! Embeddings of sentences from hidden states, as `modules.json` of sentence-transformers says.

use super::DenseModule;
use crate::config::Folder;
use briquette_core::{Error, Result};
use burn::tensor::{Bool, Tensor};
use serde::{Deserialize, Serialize};

/// Pooling of the hidden states of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolBy {
    /// Mean over the tokens without padding.
    #[default]
    Mean,
    /// State of the first token.
    Cls,
    /// State of the last token.
    LastToken,
}

/// Pooling of a sentence encoder, as in `modules.json` of sentence-transformers.
///
/// Hidden states are pooled, then mapped by the Dense module, then normalized.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooling {
    /// Pooling method.
    pub by: PoolBy,
    /// Linear layer after pooling.
    pub dense: Option<DenseModule>,
    /// Whether embeddings are normalized to length 1.
    pub normalize: bool,
}

#[derive(Deserialize)]
struct StModule {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Pooling {
    /// Reads `modules.json`; without it, returns mean pooling without normalization, like
    /// sentence-transformers.
    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        let Some(modules) = folder.read::<Vec<StModule>>("modules.json")? else {
            return Ok(Self { by: PoolBy::Mean, dense: None, normalize: false });
        };
        check_settings(folder)?;
        let ends = |module: &StModule, kind: &str| module.kind.ends_with(kind);
        let normalize = modules.iter().any(|module| ends(module, ".Normalize"));
        let pooling = modules.iter().find(|module| ends(module, ".Pooling"));
        let known = [".Normalize", ".Dense", ".Pooling", ".Transformer"];
        if let Some(other) = modules.iter().find(|module| !known.iter().any(|kind| ends(module, kind))) {
            let message = format!("found module {}, expected Transformer, Pooling, Dense or Normalize", other.kind);
            return Err(Error::input(message).at(folder.file("modules.json").display()));
        }
        let by = pooling.map_or(Ok(PoolBy::Mean), |module| pool_by(folder, &module.path))?;
        let mut dense = modules.iter().filter(|module| ends(module, ".Dense"));
        let first = dense.next().map(|module| {
            check_path(folder, &module.path)?;
            DenseModule::read(folder, &module.path)
        });
        if dense.next().is_some() {
            let message = "found several Dense modules, expected at most one";
            return Err(Error::input(message).at(folder.file("modules.json").display()));
        }
        Ok(Self { by, dense: first.transpose()?, normalize })
    }

    /// Maps hidden states `[batch, length, width]` to embeddings `[batch, width]`.
    pub fn apply(&self, states: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<2> {
        self.apply_with(states, padding, |pooled| match &self.dense {
            Some(dense) => dense.apply(pooled),
            None => pooled,
        })
    }

    /// Maps hidden states to embeddings, with `dense` instead of the Dense module.
    pub fn apply_with(
        &self,
        states: Tensor<3>,
        padding: Tensor<2, Bool>,
        dense: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let pooled = match self.by {
            PoolBy::Cls => states.narrow(1, 0, 1).squeeze_dim(1),
            PoolBy::LastToken => last_token(states, padding),
            PoolBy::Mean => {
                let there = padding.bool_not().float().unsqueeze_dim::<3>(2);
                let sum: Tensor<2> = (states * there.clone()).sum_dim(1).squeeze_dim(1);
                let n_tokens: Tensor<2> = there.sum_dim(1).squeeze_dim(1);
                sum / n_tokens.clamp_min(1e-9)
            }
        };
        let mapped = dense(pooled);
        if !self.normalize {
            return mapped;
        }
        let length = mapped.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
        mapped / length
    }
}

/// Returns the values `[batch, width]` of the last token before the padding, from values `[batch, length, width]`.
pub(crate) fn last_token(values: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<2> {
    let [batch, length, _] = values.dims();
    if length == 1 {
        return values.squeeze_dim(1);
    }
    let there = padding.bool_not().float();
    let next = there.clone().narrow(1, 1, length - 1);
    let next = Tensor::cat(vec![next, Tensor::zeros([batch, 1], &there.device())], 1);
    let is_last = (there - next).unsqueeze_dim::<3>(2);
    (values * is_last).sum_dim(1).squeeze_dim(1)
}

/// Refuses a module's path that is not a directory beside `modules.json`.
fn check_path(folder: &Folder, path: &str) -> Result<()> {
    if !path.is_empty() && path.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') {
        return Ok(());
    }
    let message = format!("found path {path:?}, expected a directory next to it");
    Err(Error::input(message).at(folder.file("modules.json").display()))
}

fn pool_by(folder: &Folder, path: &str) -> Result<PoolBy> {
    let file = format!("{path}/config.json");
    check_path(folder, path)?;
    let flags: serde_json::Map<String, serde_json::Value> = folder.read(&file)?.unwrap_or_default();
    let modes = modes_of(&flags);
    match modes.as_slice() {
        [] | ["mean" | "mean_tokens"] => Ok(PoolBy::Mean),
        ["cls" | "cls_token"] => Ok(PoolBy::Cls),
        ["lasttoken"] => Ok(PoolBy::LastToken),
        modes => {
            let message = format!("found {}, expected mean, cls or lasttoken pooling", modes.join(" and "));
            Err(Error::input(message).at(folder.file(&file).display()))
        }
    }
}

/// Returns the names of pooling modes: a key with one or several names, or, in older files, a flag for each mode.
fn modes_of(keys: &serde_json::Map<String, serde_json::Value>) -> Vec<&str> {
    match keys.get("pooling_mode") {
        Some(serde_json::Value::Array(all)) => {
            all.iter().map(|name| name.as_str().unwrap_or("another value")).collect()
        }
        Some(one) => vec![one.as_str().unwrap_or("another value")],
        None => {
            let on = keys.iter().filter(|(_, is_on)| **is_on == true);
            on.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect()
        }
    }
}

/// Refuses settings of sentence-transformers that change texts or embeddings.
fn check_settings(folder: &Folder) -> Result<()> {
    const FILE: &str = "config_sentence_transformers.json";
    let keys: serde_json::Map<String, serde_json::Value> = folder.read(FILE)?.unwrap_or_default();
    let prompt = keys.get("default_prompt_name").and_then(|name| keys.get("prompts")?.get(name.as_str()?)?.as_str());
    let key = match (prompt.is_some_and(|prompt| !prompt.is_empty()), keys.get("truncate_dim")) {
        (true, _) => "default_prompt_name",
        (_, Some(dim)) if !dim.is_null() => "truncate_dim",
        _ => return Ok(()),
    };
    let message = format!("{key} is set, which is not supported; set it to null to run the model without it");
    Err(Error::input(message).at(folder.file(FILE).display()))
}
