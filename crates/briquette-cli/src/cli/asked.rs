//! Builds a recipe from flags.

use super::in_flags::in_flags;
use super::stage_flags::What;
use briquette::pipeline::recipe;
use briquette::pipeline::recipe::raw::{self, OPEN_SCHEMES, StageKeys};
use briquette::{Error, Recipe, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns an absolute path, for a recipe in another directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| Error::io("cannot resolve", path, source))
}

/// Returns the recipe that the flags describe, or the recipe file with its paths overridden.
pub(super) fn recipe_of(model: Option<&Path>, output: Option<&Path>, what: &What) -> Result<Recipe> {
    let (raw, directory) = raw_recipe_of(model, output, what)?;
    let is_idle = raw.calibration.is_some() && !raw.uses_calibration();
    Recipe::from_raw(raw, &directory).map_err(|error| match &what.recipe {
        Some(path) => recipe::locate(error, path),
        None if is_idle && error.message.starts_with("calibration:") => idle(what),
        None if error.message.contains("no stage of this recipe runs a model") => no_run(),
        None => in_flags(error, what),
    })
}

/// Returns the recipe before validation, and the directory of its relative paths.
pub(super) fn raw_recipe_of(
    model: Option<&Path>,
    output: Option<&Path>,
    what: &What,
) -> Result<(raw::RawRecipe, PathBuf)> {
    let (mut raw, directory) = match &what.recipe {
        Some(path) => (recipe::read_raw(path)?, recipe::directory_of(path)),
        None => (raw_of(what)?, PathBuf::new()),
    };
    let is_placeholder = |path: &&Path| *path == Path::new("-");
    if let Some(model) = model {
        raw.model.path = Some(if directory.as_os_str().is_empty() { model.to_path_buf() } else { absolute(model)? });
    }
    if let Some(output) = output.filter(|path| !(is_placeholder(path) && raw.output.path.is_some())) {
        raw.output.path = Some(if directory.as_os_str().is_empty() { output.to_path_buf() } else { absolute(output)? });
    }
    if raw.model.path.is_none() {
        return Err(Error::config("no MODEL: give a file, an index or a directory to compress"));
    }
    if raw.output.path.is_none() {
        return Err(Error::config("no output: give the directory to write with --output OUT"));
    }
    if what.format.is_some() {
        raw.output.format = what.format.clone();
    }
    if what.storage.is_some() {
        raw.output.storage = what.storage.clone();
    }
    if what.memory_limit.is_some() || what.offload {
        let memory = raw.memory.get_or_insert_default();
        memory.limit = what.memory_limit.clone().or(memory.limit.take());
        memory.offload |= what.offload;
    }
    raw.model.allow_nonfinite |= what.allow_nonfinite;
    raw.output.allow_untested |= what.allow_untested;
    what.read.over(&mut raw.model);
    Ok((raw, directory))
}

/// Returns the error for calibration data or statistics that no method uses.
fn idle(what: &What) -> Error {
    let methods = "--prune-method wanda, sparsegpt or admm, --range weighted, --round gptq, --column-scales, or --bias-correction";
    Error::config(match what.data.is_some() {
        true => format!(
            "--data: no method needs layer inputs; add {methods}, a budget such as --bytes, or --quantize int8-static"
        ),
        false => {
            format!("--statistics: no method needs layer inputs; add --shrink, --fold smooth, awq or auto, {methods}")
        }
    })
}

/// Returns the error for `--offload` without a run of the model.
fn no_run() -> Error {
    Error::config("--offload: nothing runs the model; add --data or --eval, or remove it")
}

fn raw_of(what: &What) -> Result<raw::RawRecipe> {
    let (stage, calibration) = (stages_of(what)?, calibration_of(what));
    let (eval, max_length) = (what.eval.clone(), what.max_length);
    let data = eval.is_some().then(|| raw::RawData { eval, max_length, ..Default::default() });
    Ok(raw::RawRecipe { stage, calibration, budget: budget_of(what)?, data, ..Default::default() })
}

/// Returns the budget of the flags, if they set one.
fn budget_of(what: &What) -> Result<Option<raw::RawBudget>> {
    let What { bytes, bits, min, max, choices, experimental, sensitivity, loss, sensitivity_file, .. } = what.clone();
    let (min, max) = (once("--min", min)?, once("--max", max)?);
    let is_given = has_budget(what);
    Ok(is_given.then_some(raw::RawBudget {
        bytes,
        bits,
        min,
        max,
        choices,
        experimental,
        sensitivity,
        loss,
        sensitivity_file,
        samples: None,
    }))
}

/// Returns bounds by metric; refuses a metric with two.
fn once(flag: &str, bounds: Vec<(String, f64)>) -> Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for (metric, bound) in bounds {
        if let Some(other) = found.insert(metric.clone(), bound) {
            let message = format!("found {other} and {bound} for {metric}, expected one; remove the other");
            return Err(Error::config(message).at(flag));
        }
    }
    Ok(found)
}

fn has_budget(what: &What) -> bool {
    what.bytes.is_some() || what.bits.is_some() || !what.min.is_empty() || !what.max.is_empty()
}

/// Returns the calibration of the flags, if they set one.
fn calibration_of(what: &What) -> Option<raw::RawCalibration> {
    let What { data, statistics, samples, max_length, activation_range, .. } = what.clone();
    let is_given = data.is_some() || statistics.is_some();
    let max_length = max_length.filter(|_| data.is_some());
    is_given.then(|| raw::RawCalibration {
        data,
        statistics,
        samples,
        max_length,
        activation_range,
        ..Default::default()
    })
}

/// Returns the shrink stage of the flags, if they set one.
fn shrink_of(what: &What) -> Option<StageKeys> {
    let include = (!what.include.is_empty()).then(|| what.include.clone());
    let keys = raw::RawShrink {
        ratio: what.shrink,
        method: what.shrink_method.clone(),
        parts: what.shrink_parts.clone(),
        include,
        exclude: what.exclude.clone(),
        ..Default::default()
    };
    what.shrink.map(|_| StageKeys::Shrink(Box::new(keys)))
}

/// Returns a fold stage of the flags.
fn fold_of(what: &What, method: &str) -> StageKeys {
    // A rotation changes all layers or none; the patterns are those of the other stages.
    let takes_patterns = method != "rotate";
    let include = (takes_patterns && !what.include.is_empty()).then(|| what.include.clone());
    let exclude = if takes_patterns { what.exclude.clone() } else { Vec::new() };
    let scheme = what.quantize.clone().filter(|_| method == "auto");
    StageKeys::Fold(raw::RawFold { method: Some(method.into()), scheme, include, exclude, ..Default::default() })
}

fn stages_of(what: &What) -> Result<Vec<raw::RawStage>> {
    let include = (!what.include.is_empty()).then(|| what.include.clone());
    let mut stages = Vec::new();
    stages.extend(shrink_of(what));
    stages.extend(what.fold.iter().map(|method| fold_of(what, method)));
    if what.prune.is_some() || what.prune_pattern.is_some() {
        stages.push(StageKeys::Prune(raw::RawPrune {
            sparsity: what.prune,
            pattern: what.prune_pattern.clone(),
            scope: what.scope.clone(),
            method: what.prune_method.clone(),
            seed: what.seed,
            include: include.clone(),
            exclude: what.exclude.clone(),
            roles: what.prune_roles.clone(),
            ..Default::default()
        }));
    }
    let has_budget = has_budget(what);
    if let Some(scheme) = what.quantize.as_deref().filter(|name| has_budget && !OPEN_SCHEMES.contains(name)) {
        let message = format!(
            "found {scheme} and a budget, which chooses a step size for each tensor; remove --quantize, or choose among schemes: --choices {scheme}"
        );
        return Err(Error::config(message).at("--quantize"));
    }
    if has_budget || what.quantize.is_some() {
        let default = match has_budget {
            true => raw::RawQuantize::for_budget(what.data.is_some() || what.statistics.is_some()),
            false => raw::RawQuantize::default(),
        };
        stages.push(StageKeys::Quantize(raw::RawQuantize {
            scheme: what.quantize.clone().or(default.scheme),
            range: what.range.clone(),
            round: what.round.clone().or(default.round),
            reconstruct: what.reconstruct.clone(),
            column_scales: what.column_scales.then_some(true),
            bias_correction: what.bias_correction.then_some(true),
            include: include.clone(),
            exclude: what.exclude.clone(),
            roles: what.quantize_roles.clone(),
            ..Default::default()
        }));
    }
    if let Some(dtype) = &what.cast {
        let (dtype, exclude) = (Some(dtype.clone()), what.exclude.clone());
        stages.push(StageKeys::Cast(raw::RawCast { dtype, include, exclude, roles: None }));
    }
    if what.eval.is_some() {
        stages.push(StageKeys::Evaluate(Default::default()));
    }
    if stages.is_empty() {
        return Err(Error::config("nothing to do: give --shrink, --fold, --prune, --quantize, --cast or --recipe"));
    }
    Ok(stages.into_iter().map(Into::into).collect())
}
