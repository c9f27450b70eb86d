//! The network as a figure: a box for each node, and equal blocks once.

mod layout;
mod svg;

use super::escape::{escape, name};
use super::frame::{page, scrolling};
use crate::report::figures::{CouplingReport, GraphDiagram, GraphReport, GraphTotals, GroupFigures};
use crate::report::{Report, numbers};
use maud::{Markup, html};

/// Largest number of nodes that are drawn.
const MAX_NODES: usize = 2000;
/// Largest number of groups in the table, and of places in a row.
const MAX_GROUPS: usize = 500;
const MAX_PLACES: usize = 12;
/// Largest number of unused tensors that are listed.
const MAX_UNUSED: usize = 100;

/// Returns the page of a graph. Equal reports give equal bytes.
pub fn of_graph(report: &GraphReport) -> String {
    let what = if report.primitives.is_some() { "primitive operation" } else { "node" };
    let sections = [
        headline(report),
        figure(&report.diagram, what),
        report.coupling.as_ref().map(groups).unwrap_or_default(),
        unused(&report.unused),
    ];
    let footer = html! {
        "Written by " (escape(&report.producer)) ". The same figures, for programs: " code { "briquette graph --json" }
    };
    page(&format!("{}, graph", numbers::last_part(&report.model)), &sections, &footer)
}

/// Returns the section of a report; empty if the family of its model is not known.
pub(super) fn section(report: &Report) -> Markup {
    report.graph.as_ref().map(|diagram| figure(diagram, "node")).unwrap_or_default()
}

fn headline(report: &GraphReport) -> Markup {
    let GraphTotals { n_nodes, n_parameters, weight_bytes, multiply_adds } = report.totals;
    let inputs = report.inputs.iter().filter_map(|&value| report.values.get(value));
    html! {
        header {
            p class="kicker" { (name(&report.model)) }
            h1 { span { (escape(&report.family)) } }
            p class="verdict" {
                (numbers::count(n_parameters)) " parameters in " (numbers::bytes(weight_bytes)) ", "
                (numbers::amount(multiply_adds)) " multiply-adds."
            }
            p class="fine" {
                (n_nodes) " nodes, for inputs "
                @for (place, value) in inputs.enumerate() {
                    @if place > 0 { ", " }
                    (escape(&value.name)) " " (numbers::shape_text(&value.shape))
                }
                "."
            }
        }
    }
}

fn figure(diagram: &GraphDiagram, what: &str) -> Markup {
    let n = diagram.nodes.len();
    let drawn = match n <= MAX_NODES {
        true => svg::draw(diagram),
        false => html! { p { (n) " boxes are too many to draw. Without --all, equal blocks are drawn once." } },
    };
    html! {
        section aria-labelledby="network" {
            figure {
                figcaption {
                    h2 id="network" { "The network" }
                    p {
                        "Each box is a " (what) " with its name, its operation and the shape of its largest weight, then the \
                         bytes of its dense weights, its multiply-adds, and the shape of its output. Equal blocks are drawn \
                         once. Colours show roles."
                    }
                }
                (scrolling("network", &drawn))
            }
        }
    }
}

fn groups(coupling: &CouplingReport) -> Markup {
    let share = numbers::share(coupling.n_left_at_half, coupling.n_parameters);
    let n_hidden = coupling.groups.len().saturating_sub(MAX_GROUPS);
    let table = html! {
        table {
            thead {
                tr {
                    th scope="col" class="num" { "Units" }
                    th scope="col" class="num" { "Parameters in half" }
                    th scope="col" { "Weights, with the axis and the elements of each unit" }
                }
            }
            tbody { @for group in coupling.groups.iter().take(MAX_GROUPS) { (row(group, coupling.n_parameters)) "\n" } }
        }
    };
    html! {
        section aria-labelledby="groups" {
            h2 id="groups" { "Coupling groups" }
            p {
                "A unit is a channel, a head or an expert that can only be removed from all its weights at once. Half of the \
                 units of every group leaves " (numbers::count(coupling.n_left_at_half)) " of "
                (numbers::count(coupling.n_parameters)) " parameters (" (numbers::percent(share)) ")."
            }
            (scrolling("groups", &table))
            @if n_hidden > 0 { p { (n_hidden) " more groups are not listed." } }
        }
    }
}

fn row(group: &GroupFigures, n_parameters: u64) -> Markup {
    let n_hidden = group.places.len().saturating_sub(MAX_PLACES);
    html! {
        tr {
            td class="num" { (numbers::count(group.n_units as u64)) }
            td class="num" { (numbers::count(n_parameters.saturating_sub(group.n_left_at_half))) }
            td {
                @for (index, place) in group.places.iter().take(MAX_PLACES).enumerate() {
                    @if index > 0 { ", " }
                    (name(&place.name)) " axis " (place.axis) " (" (place.width) ")"
                }
                @if n_hidden > 0 { " and " (n_hidden) " more" }
            }
        }
    }
}

fn unused(names: &[String]) -> Markup {
    if names.is_empty() {
        return Markup::default();
    }
    let n_hidden = names.len().saturating_sub(MAX_UNUSED);
    html! {
        section aria-labelledby="unused" {
            h2 id="unused" { "Tensors that no node uses" }
            ul class="fine" { @for tensor in names.iter().take(MAX_UNUSED) { li { (name(tensor)) } } }
            @if n_hidden > 0 { p { (n_hidden) " more are not listed." } }
        }
    }
}

#[cfg(test)]
mod tests;
