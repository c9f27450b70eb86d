//! The training of a student: loss, epochs, memory, and bytes after each part.

use super::escape::escape;
use crate::report::figures::REFERENCE;
use crate::report::{CurvePoint, DistillReport, Report, numbers};
use maud::{Markup, html};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Width and height of a drawing, in its own units.
const SIZE: [f64; 2] = [600.0, 120.0];

/// Returns the figures; empty without a training.
pub(super) fn section(report: &Report) -> Markup {
    if report.trained.is_empty() {
        return Markup::default();
    }
    html! {
        section aria-labelledby="training" {
            h2 id="training" { "Training" }
            @for found in &report.trained { (training(found)) }
            table {
                thead { tr { th scope="col" { "After" } th scope="col" class="num" { "Weight files" } } }
                tbody {
                    @for part in &report.stage_bytes {
                        tr {
                            th scope="row" { (escape(&part.stage)) }
                            td class="num" { (numbers::bytes(part.file_bytes)) }
                        }
                        "\n"
                    }
                }
            }
        }
    }
}

fn training(found: &DistillReport) -> Markup {
    let count = |n: usize| numbers::count(n as u64);
    html! {
        p {
            "The student, " (escape(&found.student)) " with " (count(found.n_weights)) " weights, learned from "
            (escape(found.teacher.as_deref().unwrap_or("labels only"))) ". Losses: "
            (escape(&found.losses.join(" + "))) ". "
            (count(found.n_items)) " items, " (count(found.n_steps)) " steps of " (found.batch_size) " items, "
            (found.at_once) " in memory at once; " (numbers::seconds(found.seconds)) ". Memory: "
            (memory(found)) " (" (escape(&found.peak_meter)) ")."
        }
        (curve(&found.curve))
        (epochs(found))
    }
}

fn memory(found: &DistillReport) -> String {
    match (found.peak_bytes, found.predicted_peak_bytes) {
        (Some(peak), Some(predicted)) => {
            format!("peak {}, predicted {} for a whole batch at once", numbers::bytes(peak), numbers::bytes(predicted))
        }
        (Some(peak), None) => format!("peak {}", numbers::bytes(peak)),
        (None, _) => "not measured".into(),
    }
}

/// Returns the loss by step on a logarithmic scale.
fn curve(points: &[CurvePoint]) -> Markup {
    let drawn: Vec<(f64, f64)> = points
        .iter()
        .filter(|point| point.loss.is_finite() && point.loss > 0.0)
        .map(|point| (point.step as f64, point.loss.ln()))
        .collect();
    let (Some(first), Some(last)) = (drawn.first(), drawn.last()) else { return Markup::default() };
    let low = drawn.iter().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
    let high = drawn.iter().map(|(_, loss)| *loss).fold(f64::NEG_INFINITY, f64::max);
    let x = |step: f64| SIZE[0] * (step - first.0) / (last.0 - first.0).max(1.0);
    let y = |loss: f64| SIZE[1] * (1.0 - (loss - low) / (high - low).max(1e-9));
    let path = drawn.iter().enumerate().fold(String::new(), |mut out, (place, (step, loss))| {
        let _ = write!(out, "{}{:.1} {:.1}", if place == 0 { 'M' } else { 'L' }, x(*step), y(*loss));
        out
    });
    let (high, low) = (numbers::decimal(high.exp(), 4), numbers::decimal(low.exp(), 4));
    html! {
        figure class="histogram" {
            figcaption {
                b { "Loss" } " "
                small {
                    (high) " to " (low) ", steps " (first.0) " to " (last.0) ", on a logarithmic scale"
                }
            }
            svg viewBox=(format_args!("0 0 {} {}", SIZE[0], SIZE[1])) preserveAspectRatio="none" role="img"
                aria-label="The loss by step" {
                path class="outline" d=(path) {}
            }
        }
    }
}

/// Returns the table of epochs.
fn epochs(found: &DistillReport) -> Markup {
    let names: BTreeSet<&String> = found.epochs.iter().flat_map(|epoch| epoch.metrics.keys()).collect();
    let names: Vec<&String> = names.into_iter().filter(|name| !name.starts_with(REFERENCE)).collect();
    if names.is_empty() {
        return Markup::default();
    }
    let number = |value: Option<f64>| value.map_or(numbers::NONE.into(), |value| numbers::decimal(value, 5));
    html! {
        table {
            thead {
                tr {
                    th scope="col" {
                        "Student after" @if let Some(data) = &found.epochs_on { ", on " (escape(data)) }
                    }
                    th scope="col" class="num" { "mean loss" }
                    @for name in &names { th scope="col" class="num" { (escape(&name.replace('_', " "))) } }
                }
            }
            tbody {
                @for epoch in &found.epochs {
                    tr {
                        th scope="row" {
                            "epoch " (epoch.epoch) @if found.best_epoch == Some(epoch.epoch) { (kept_for(found)) }
                        }
                        td class="num" { (number(epoch.loss)) }
                        @for name in &names { td class="num" { (number(epoch.metrics.get(*name).copied())) } }
                    }
                    "\n"
                }
            }
        }
    }
}

/// Returns why the weights of the best epoch are kept.
fn kept_for(found: &DistillReport) -> Markup {
    html! {
        @match &found.chosen_by {
            Some(metric) => { " (kept for its " (escape(metric)) ")" }
            None => " (kept)"
        }
    }
}
