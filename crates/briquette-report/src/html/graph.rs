//! The network as a figure: a box for each node, and equal blocks once.

mod layout;
mod svg;

use super::escape::{escape, name};
use super::frame;
use crate::figures::{CouplingReport, GraphDiagram, GraphReport, GraphTotals, GroupPlace};
use crate::{Report, numbers};
use std::fmt::Write;

/// Largest number of nodes that are drawn.
const MAX_NODES: usize = 2000;
/// Largest number of groups in the table, and of places in a row.
const MAX_GROUPS: usize = 500;
const MAX_PLACES: usize = 12;

/// Returns the page of a graph. Equal reports give equal bytes.
pub fn of_graph(report: &GraphReport) -> String {
    let diagram = &report.diagram;
    let sections = [
        headline(report),
        figure(diagram, if report.primitives.is_some() { "primitive operation" } else { "node" }),
        report.coupling.as_ref().map(groups).unwrap_or_default(),
        unused(&report.unused),
    ];
    let footer = format!(
        "Written by {}. The same figures, for programs: <code>briquette graph --json</code>",
        escape(&report.producer)
    );
    frame::page(&format!("{}, graph", numbers::last_part(&report.model)), &sections.concat(), &footer)
}

/// Returns the section of a report; empty if the family of its model is not known.
pub(super) fn section(report: &Report) -> String {
    report.graph.as_ref().map(|diagram| figure(diagram, "node")).unwrap_or_default()
}

fn headline(report: &GraphReport) -> String {
    let GraphTotals { n_nodes, n_parameters, weight_bytes, multiply_adds } = report.totals;
    let inputs = report.inputs.iter().filter_map(|&value| report.values.get(value));
    let inputs = inputs.map(|value| format!("{} {}", escape(&value.name), numbers::shape_text(&value.shape)));
    format!(
        "<header>\n<p class=\"kicker\">{model}</p>\n<h1><span>{family}</span></h1>\n\
         <p class=\"verdict\">{parameters} parameters in {bytes}, {multiply_adds} multiply-adds.</p>\n\
         <p class=\"fine\">{n_nodes} nodes, for inputs {inputs}.</p>\n</header>\n",
        model = name(&report.model),
        family = escape(&report.family),
        parameters = numbers::count(n_parameters),
        bytes = numbers::bytes(weight_bytes),
        multiply_adds = numbers::amount(multiply_adds),
        inputs = inputs.collect::<Vec<_>>().join(", "),
    )
}

fn figure(diagram: &GraphDiagram, what: &str) -> String {
    let n = diagram.nodes.len();
    let drawn = match n <= MAX_NODES {
        true => svg::draw(diagram),
        false => format!("<p>{n} boxes are too many to draw. Without --all, equal blocks are drawn once.</p>\n"),
    };
    format!(
        "<section aria-labelledby=\"network\">\n<figure>\n<figcaption><h2 id=\"network\">The network</h2>\n\
         <p>Each box is a {what} with its name, its operation and the shape of its largest weight, then the bytes of its dense weights, \
         its multiply-adds, and the shape of its output. Equal blocks are drawn once. Colours show roles.</p></figcaption>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"network\">\n{drawn}</div>\n</figure>\n</section>\n"
    )
}

fn groups(coupling: &CouplingReport) -> String {
    let mut rows = String::new();
    for group in coupling.groups.iter().take(MAX_GROUPS) {
        let removed = coupling.n_parameters - group.n_left_at_half.min(coupling.n_parameters);
        let places = group.places.iter().take(MAX_PLACES).map(place).collect::<Vec<_>>().join(", ");
        let more = match group.places.len().saturating_sub(MAX_PLACES) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let _ = writeln!(
            rows,
            "<tr><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{places}{more}</td></tr>",
            numbers::count(group.n_units as u64),
            numbers::count(removed),
        );
    }
    let left = match coupling.groups.len().saturating_sub(MAX_GROUPS) {
        0 => String::new(),
        n => format!("<p>{n} more groups are not listed.</p>\n"),
    };
    format!(
        "<section aria-labelledby=\"groups\">\n<h2 id=\"groups\">Coupling groups</h2>\n\
         <p>A unit is a channel, a head or an expert that can only be removed from all its weights at once. Half of the units of every \
         group leaves {} of {} parameters ({}).</p>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"groups\">\n<table>\n\
         <thead><tr><th scope=\"col\" class=\"num\">Units</th><th scope=\"col\" class=\"num\">Parameters in half</th>\
         <th scope=\"col\">Weights, with the axis and the elements of each unit</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n\
         {left}</section>\n",
        numbers::count(coupling.n_left_at_half),
        numbers::count(coupling.n_parameters),
        numbers::percent(numbers::share(coupling.n_left_at_half, coupling.n_parameters)),
    )
}

fn place(place: &GroupPlace) -> String {
    format!("{} axis {} ({})", name(&place.name), place.axis, place.width)
}

fn unused(names: &[String]) -> String {
    const MAX: usize = 100;
    if names.is_empty() {
        return String::new();
    }
    let shown: String = names.iter().take(MAX).map(|tensor| format!("<li>{}</li>", name(tensor))).collect();
    let more = match names.len().saturating_sub(MAX) {
        0 => String::new(),
        n => format!("<p>{n} more are not listed.</p>\n"),
    };
    format!(
        "<section aria-labelledby=\"unused\">\n<h2 id=\"unused\">Tensors that no node uses</h2>\n<ul class=\"fine\">{shown}</ul>\n\
         {more}</section>\n"
    )
}

#[cfg(test)]
mod tests;
