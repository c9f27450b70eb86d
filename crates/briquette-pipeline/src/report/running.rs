//! Results of an evaluation as rows of figures.

use super::figures::{EvaluationReport, MemoryFigures, REFERENCE, RunFigures};
use super::numbers;
use briquette_recipe::Metric;
use std::collections::BTreeSet;

/// A figure before and after, and how it was measured.
pub(super) struct Figure {
    pub(super) what: String,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) how: String,
}

/// Returns quality, latency and memory, in this order.
pub(super) fn figures(found: &EvaluationReport) -> Vec<Figure> {
    let mut out: Vec<Figure> = quality(found).collect();
    let sizes = match found.batch_size_before {
        Some(before) if before != found.batch_size => format!("{before} before, {} after", found.batch_size),
        _ => found.batch_size.to_string(),
    };
    let how = format!("median of batches of {sizes}, on {}", found.device);
    out.push(both(found, "milliseconds per batch", &how, |run| Some(numbers::decimal(run.p50_ms, 2))));
    let how = format!("{} items of {}", found.n_items, found.data);
    out.push(both(found, "items per second", &how, |run| Some(numbers::decimal(run.items_per_s, 1))));
    let kinds: BTreeSet<&String> = found.before.iter().chain([&found.after]).flat_map(|run| run.held.keys()).collect();
    for kind in kinds {
        let how = "bytes of parameters with this storage";
        out.push(both(found, &format!("weights as {kind}"), how, |run| {
            run.held.get(kind).map(|held| numbers::bytes(held.n_bytes as u64))
        }));
    }
    for (place, memory) in found.after.memory.iter().enumerate() {
        let of = |run: &RunFigures, bytes: fn(&MemoryFigures) -> Option<u64>| {
            run.memory.get(place).and_then(bytes).map(numbers::bytes)
        };
        let how = &memory.meter;
        out.push(both(found, "weights while running", how, |run| of(run, |memory| memory.weights_bytes)));
        out.push(both(found, "weights, predicted", "from headers", |run| of(run, |memory| memory.predicted_bytes)));
        out.push(both(found, "peak while running", how, |run| of(run, |memory| memory.peak_bytes)));
    }
    out
}

fn quality(found: &EvaluationReport) -> impl Iterator<Item = Figure> {
    let number = |value: Option<&f64>| value.map_or(numbers::NONE.into(), |value| numbers::decimal(*value, 5));
    let own = found.metrics.iter().filter(|(name, _)| !name.starts_with(REFERENCE));
    own.map(move |(name, value)| Figure {
        what: name.replace('_', " "),
        before: number(found.metrics.get(&format!("{REFERENCE}{name}"))),
        after: number(Some(value)),
        how: Metric::named(name).map_or("", |metric| metric.meaning).into(),
    })
}

fn both(found: &EvaluationReport, what: &str, how: &str, of: impl Fn(&RunFigures) -> Option<String>) -> Figure {
    let text = |run: Option<&RunFigures>| run.and_then(&of).unwrap_or(numbers::NONE.into());
    let (before, after) = (text(found.before.as_ref()), text(Some(&found.after)));
    Figure { what: what.into(), before, after, how: how.into() }
}
