//! The training of a student: loss, epochs, memory, and bytes after each part.

use super::escape::escape;
use crate::figures::REFERENCE;
use crate::{CurvePoint, DistillReport, Report, numbers};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Width and height of a drawing, in its own units.
const SIZE: [f64; 2] = [600.0, 120.0];

/// Returns the figures; empty without a training.
pub(super) fn section(report: &Report) -> String {
    if report.trained.is_empty() {
        return String::new();
    }
    let trainings: String = report.trained.iter().map(training).collect();
    let bytes = report.stage_bytes.iter().fold(String::new(), |mut out, part| {
        let (stage, bytes) = (escape(&part.stage), numbers::bytes(part.file_bytes));
        let _ = writeln!(out, "<tr><th scope=\"row\">{stage}</th><td class=\"num\">{bytes}</td></tr>");
        out
    });
    format!(
        "<section aria-labelledby=\"training\">\n<h2 id=\"training\">Training</h2>\n{trainings}\
         <table>\n<thead><tr><th scope=\"col\">After</th><th scope=\"col\" class=\"num\">Weight files</th></tr></thead>\n\
         <tbody>\n{bytes}</tbody>\n</table>\n</section>\n"
    )
}

fn training(found: &DistillReport) -> String {
    let teacher = found.teacher.as_deref().map_or("labels only".into(), escape);
    let memory = match (found.peak_bytes, found.predicted_peak_bytes) {
        (Some(peak), Some(predicted)) => {
            format!("peak {}, predicted {} for a whole batch at once", numbers::bytes(peak), numbers::bytes(predicted))
        }
        (Some(peak), None) => format!("peak {}", numbers::bytes(peak)),
        (None, _) => "not measured".into(),
    };
    format!(
        "<p>The student, {student} with {n_weights} weights, learned from {teacher}. Losses: {losses}. {n_items} items, {n_steps} steps of {batch} items, \
         {at_once} in memory at once; {seconds}. Memory: {memory} ({meter}).</p>\n{curve}{epochs}",
        student = escape(&found.student),
        n_weights = numbers::count(found.n_weights as u64),
        losses = escape(&found.losses.join(" + ")),
        n_items = numbers::count(found.n_items as u64),
        n_steps = numbers::count(found.n_steps as u64),
        batch = found.batch_size,
        at_once = found.at_once,
        seconds = numbers::seconds(found.seconds),
        meter = escape(&found.peak_meter),
        curve = curve(&found.curve),
        epochs = epochs(found),
    )
}

/// Returns the loss by step on a logarithmic scale.
fn curve(points: &[CurvePoint]) -> String {
    let drawn: Vec<(f64, f64)> = points
        .iter()
        .filter(|point| point.loss.is_finite() && point.loss > 0.0)
        .map(|point| (point.step as f64, point.loss.ln()))
        .collect();
    let (Some(first), Some(last)) = (drawn.first(), drawn.last()) else { return String::new() };
    let low = drawn.iter().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
    let high = drawn.iter().map(|(_, loss)| *loss).fold(f64::NEG_INFINITY, f64::max);
    let x = |step: f64| SIZE[0] * (step - first.0) / (last.0 - first.0).max(1.0);
    let y = |loss: f64| SIZE[1] * (1.0 - (loss - low) / (high - low).max(1e-9));
    let path = drawn.iter().enumerate().fold(String::new(), |mut out, (place, (step, loss))| {
        let _ = write!(out, "{}{:.1} {:.1}", if place == 0 { 'M' } else { 'L' }, x(*step), y(*loss));
        out
    });
    format!(
        "<figure class=\"histogram\">\n<figcaption><b>Loss</b> <small>{} to {}, steps {} to {}, on a logarithmic scale</small>\
         </figcaption>\n<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"The loss by step\">\n\
         <path class=\"outline\" d=\"{path}\"/>\n</svg>\n</figure>\n",
        numbers::decimal(high.exp(), 4),
        numbers::decimal(low.exp(), 4),
        first.0,
        last.0,
        SIZE[0],
        SIZE[1],
    )
}

/// Returns the table of epochs.
fn epochs(found: &DistillReport) -> String {
    let names: BTreeSet<&String> = found.epochs.iter().flat_map(|epoch| epoch.metrics.keys()).collect();
    let names: Vec<&String> = names.into_iter().filter(|name| !name.starts_with(REFERENCE)).collect();
    if names.is_empty() {
        return String::new();
    }
    let on = found.epochs_on.as_deref().map_or(String::new(), |data| format!(", on {}", escape(data)));
    let kept_for = match (found.best_epoch, &found.chosen_by) {
        (Some(_), Some(metric)) => format!(" (kept for its {})", escape(metric)),
        _ => " (kept)".into(),
    };
    let heads: String = names
        .iter()
        .map(|name| format!("<th scope=\"col\" class=\"num\">{}</th>", escape(&name.replace('_', " "))))
        .collect();
    let rows = found.epochs.iter().fold(String::new(), |mut out, epoch| {
        let cell = |name: &&String| {
            let value = epoch.metrics.get(*name).map_or(numbers::NONE.into(), |value| numbers::decimal(*value, 5));
            format!("<td class=\"num\">{value}</td>")
        };
        let kept = if found.best_epoch == Some(epoch.epoch) { kept_for.as_str() } else { "" };
        let loss = epoch.loss.map_or(numbers::NONE.into(), |loss| numbers::decimal(loss, 5));
        let cells: String = names.iter().map(cell).collect();
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">epoch {}{kept}</th><td class=\"num\">{loss}</td>{cells}</tr>",
            epoch.epoch
        );
        out
    });
    format!(
        "<table>\n<thead><tr><th scope=\"col\">Student after{on}</th><th scope=\"col\" class=\"num\">mean loss</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
    )
}
