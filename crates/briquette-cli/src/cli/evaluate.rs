//! `eval`: runs and measures models.

use super::args::EvalArgs;
use super::common::Common;
use super::options::options;
use super::show::show_and_check;
use super::tables::{bytes, table};
use briquette::core::printable::printable;
use briquette::pipeline::evaluate::evaluate;
use briquette::pipeline::recipe::{Evaluate, StageKind, directory_of, paths, raw, read_raw};
use briquette::pipeline::report::{ContinuationFigures, EvaluationReport, HeldFigures, MemoryFigures, RunFigures};
use briquette::{Error, Result};
use std::path::{Path, PathBuf};

/// Evaluates a model, optionally against the original.
pub(super) fn eval(common: &Common, model: &Path, what: &EvalArgs) -> Result<u8> {
    let (asked, reference) = asked(what)?;
    let found = evaluate(&asked, model, reference.as_deref(), &options(common, false)?)?;
    show_and_check(common, &found, || Ok(text_of(&found)), asked.bounds.check(&found.metrics))
}

/// Returns the evaluation settings and the model to compare with.
fn asked(what: &EvalArgs) -> Result<(Evaluate, Option<PathBuf>)> {
    let mut raw = what.recipe.as_deref().map(read_raw).transpose()?.unwrap_or_default();
    // Paths of the recipe are relative to it, but paths of the command line are not.
    what.recipe.iter().for_each(|path| paths::resolve(&mut raw, &directory_of(path)));
    let reference = what.against.clone().or(raw.model.path.clone());
    let trains = raw.has(StageKind::Distill);
    raw.stage = vec![raw::StageKeys::Evaluate(raw::RawEvaluate {}).into()];
    what.model.over(&mut raw.model);
    let data = raw.data.get_or_insert_default();
    data.eval = what.data.clone().or(data.eval.take());
    data.labels = what.labels.clone().or(data.labels.take());
    data.max_length = what.max_length.or(data.max_length);
    data.stride = what.stride.or(data.stride);
    data.size = what.size.or(data.size);
    data.tile = what.tile.or(data.tile);
    data.strict |= what.strict;
    if data.eval.is_none() {
        return Err(Error::config("no data to evaluate on: give --data, or --recipe with [data] eval"));
    }
    let memory = raw.memory.get_or_insert_default();
    memory.batch_size = what.batch_size.clone().or(memory.batch_size.take());
    // A recipe that trains sets the type of its training here; evaluation uses another.
    memory.dtype = what.dtype.clone().or(memory.dtype.take().filter(|_| !trains));
    memory.offload |= what.offload;
    memory.limit = what.memory_limit.clone().or(memory.limit.take());
    let asked = Evaluate::from_raw(&raw)?;
    Ok((asked.ok_or_else(|| Error::bug("an evaluate stage was given"))?, reference))
}

/// Returns tables of quality, latency and memory.
pub(super) fn text_of(found: &EvaluationReport) -> String {
    let mut out = quality(found);
    out += &found
        .input_difference
        .as_ref()
        .map_or_else(String::new, |words| format!("note: {words}; compare the files beside both models\n"));
    out += &found.continuation.as_ref().map_or_else(String::new, |texts| continued(texts, label(found)));
    let runs: Vec<(&str, &RunFigures)> =
        found.before.iter().map(|run| ("before", run)).chain([(label(found), &found.after)]).collect();
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|(name, run)| {
            let ms = |value: f64| format!("{value:.2}");
            let rate = format!("{:.1}", run.items_per_s);
            vec![name.to_string(), ms(run.p50_ms), ms(run.p90_ms), ms(run.p99_ms), rate]
        })
        .collect();
    out += "\n";
    out += &table(&["latency", "p50 ms", "p90 ms", "p99 ms", "items/s"], &rows);
    out += &slower(found);
    let rows: Vec<Vec<String>> =
        runs.iter().flat_map(|(name, run)| run.held.iter().map(move |held| held_row(name, held))).collect();
    if !rows.is_empty() {
        out += "\n";
        out += &table(&["stored", "as", "tensors", "weights", "bytes"], &rows);
    }
    let memory = runs.iter().flat_map(|(name, run)| run.memory.iter().map(move |memory| memory_row(name, memory)));
    let rows: Vec<Vec<String>> = memory.collect();
    if !rows.is_empty() {
        out += "\n";
        out += &table(&["memory", "weights", "predicted", "peak", "left", "measured by"], &rows);
    }
    let skipped =
        if found.n_skipped > 0 { format!(", {} could not be decoded", found.n_skipped) } else { String::new() };
    out += &format!(
        "\n{} on {}: {} items of {} in batches of {}{skipped}\n",
        found.arch,
        found.device,
        found.n_items,
        printable(&found.data),
        batches(found)
    );
    out
}

/// Returns the label of the model's own figures: "after" only with a model to compare with.
fn label(found: &EvaluationReport) -> &'static str {
    if found.before.is_some() { "after" } else { "model" }
}

/// Returns the text that a decoder generates from the prompt, before and after.
fn continued(found: &ContinuationFigures, label: &str) -> String {
    let one_line = |text: &str| printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).to_string();
    let mut out = format!("\ncontinuations of \"{}\"\n", found.prompt);
    for (name, text) in found.before.iter().map(|text| ("before", text)).chain([(label, &found.after)]) {
        out += &format!("  {name:<6}  {}\n", one_line(text));
    }
    out
}

/// Returns the batch size, and whether it was chosen automatically.
fn batches(found: &EvaluationReport) -> String {
    let how = if found.is_batch_auto { ", as many as fit" } else { "" };
    match found.batch_size_before {
        Some(before) if before != found.batch_size => format!("{before} before, {} after{how}", found.batch_size),
        _ => format!("{}{how}", found.batch_size),
    }
}

/// Returns a warning if the compressed model is slower.
fn slower(found: &EvaluationReport) -> String {
    let (Some(before), after) = (&found.before, &found.after) else { return String::new() };
    // Items per second are comparable even if the batch sizes differ.
    if after.items_per_s >= before.items_per_s || after.items_per_s <= 0.0 {
        return String::new();
    }
    let as_floats = after.held.keys().any(|name| name.ends_with("as floats"));
    let why = if as_floats { ": its scheme computes in floats, so weights are decoded for each use" } else { "" };
    format!("slower than before by {:.0} %{why}\n", 100.0 * (before.items_per_s / after.items_per_s - 1.0))
}

fn held_row(name: &str, (kind, held): (&String, &HeldFigures)) -> Vec<String> {
    let counts = [held.n_tensors, held.n_weights].map(|n| n.to_string());
    let [n_tensors, n_weights] = counts;
    vec![name.to_string(), kind.clone(), n_tensors, n_weights, bytes(held.n_bytes as u64)]
}

fn quality(found: &EvaluationReport) -> String {
    let number = |value: Option<&f64>| value.map_or("-".to_string(), |value| format!("{value:.6}"));
    let own = found.metrics.iter().filter(|(name, _)| !name.starts_with("reference_"));
    let rows: Vec<Vec<String>> = own
        .map(|(name, value)| {
            let before = found.metrics.get(&format!("reference_{name}"));
            vec![name.clone(), number(before), number(Some(value))]
        })
        .collect();
    if rows.is_empty() {
        return "no quality: give --against or labels\n".into();
    }
    if found.before.is_some() {
        return table(&["quality", "before", "after"], &rows);
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| vec![row[0].clone(), row[2].clone()]).collect();
    table(&["quality", "model"], &rows)
}

fn memory_row(name: &str, memory: &MemoryFigures) -> Vec<String> {
    let figure = |value: Option<u64>| value.map_or("-".to_string(), bytes);
    vec![
        name.to_string(),
        figure(memory.weights_bytes),
        figure(memory.predicted_bytes),
        figure(memory.peak_bytes),
        figure(memory.after_bytes),
        memory.meter.clone(),
    ]
}
