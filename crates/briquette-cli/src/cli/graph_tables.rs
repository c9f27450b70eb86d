//! Tables of a graph: its nodes with equal blocks once, and its coupling groups.

use super::tables::{bytes, put_table};
use briquette::core::printable::printable;
use briquette::pipeline::report::groups::{Likeness, TensorGroups, label};
use briquette::pipeline::report::numbers::{amount, shape_text};
use briquette::pipeline::report::{
    CouplingReport, DiagramNode, DiagramSection, GraphDiagram, GraphReport, GraphTotals, GraphWeight, GroupFigures,
};
use std::io;
use std::path::Path;

/// Largest number of places of a group in a row, without --all.
const MAX_PLACES: usize = 6;

/// A row of the table of nodes.
enum Row {
    /// The sums of equal blocks, by the index of their section.
    Blocks(usize),
    /// A node, and whether it is part of a block.
    Node(usize, bool),
}

/// Writes the nodes. A row for equal blocks has their sums, and the rows below it show one block.
pub(crate) fn nodes(out: &mut dyn io::Write, diagram: &GraphDiagram) -> io::Result<()> {
    let rows = rows_of(diagram);
    let headings = ["node", "operation", "weights", "bytes", "multiply-adds", "output"];
    let cells = |row: usize| match rows[row] {
        Row::Blocks(section) => block_cells(diagram, &diagram.sections[section]),
        Row::Node(node, is_inner) => node_cells(&diagram.nodes[node], is_inner),
    };
    let left_out = put_table(out, (&headings, &["weights", "bytes", "output"]), rows.len(), &cells)?;
    let has_equal = diagram.sections.iter().any(|section| section.n_blocks > 1);
    if has_equal || !left_out.is_empty() {
        writeln!(out)?;
    }
    if !left_out.is_empty() {
        writeln!(out, "The terminal is too narrow for: {}.", left_out.join(", "))?;
    }
    match has_equal {
        true => {
            writeln!(
                out,
                "A row with × sums equal blocks, and the rows below it show one of them; --all lists each block."
            )
        }
        false => Ok(()),
    }
}

fn rows_of(diagram: &GraphDiagram) -> Vec<Row> {
    let n_inputs = diagram.sections.first().map_or(diagram.nodes.len(), |section| section.first_node);
    let mut rows: Vec<Row> = (0..n_inputs).map(|node| Row::Node(node, false)).collect();
    for (index, section) in diagram.sections.iter().enumerate() {
        let is_inner = section.is_of_blocks();
        rows.extend(is_inner.then_some(Row::Blocks(index)));
        rows.extend((section.first_node..section.first_node + section.n_nodes).map(|node| Row::Node(node, is_inner)));
    }
    rows
}

fn block_cells(diagram: &GraphDiagram, section: &DiagramSection) -> Vec<String> {
    let last = &diagram.nodes[section.first_node + section.n_nodes - 1];
    let count = if section.n_blocks > 1 { format!("{} × ", section.n_blocks) } else { String::new() };
    vec![
        format!("{count}{}", section.blocks),
        "block".into(),
        String::new(),
        figure(section.bytes, bytes),
        figure(section.multiply_adds, amount),
        shape_text(&last.output),
    ]
}

fn node_cells(node: &DiagramNode, is_inner: bool) -> Vec<String> {
    let weights: Vec<String> =
        node.weights.iter().map(|weight| format!("{} {}", weight.name, shape_text(&weight.shape))).collect();
    vec![
        format!("{}{}", if is_inner { "  " } else { "" }, node.name),
        node.operation.clone(),
        weights.join(", "),
        figure(node.bytes, bytes),
        figure(node.multiply_adds, amount),
        shape_text(&node.output),
    ]
}

fn figure(n: u64, words: fn(u64) -> String) -> String {
    if n == 0 { "-".into() } else { words(n) }
}

/// Groups that cut the same axes in different layers share a row.
struct Coupled<'a>(&'a [GroupFigures], Vec<String>);

impl Likeness for Coupled<'_> {
    fn name(&self, place: usize) -> &str {
        &self.1[place]
    }

    fn traits(&self, place: usize) -> String {
        let group = &self.0[place];
        let places: Vec<String> = group.places.iter().map(|place| format!("{}/{}", place.axis, place.width)).collect();
        format!("{} {}", group.n_units, places.join(" "))
    }
}

/// Writes the coupling groups, and the parameters that stay after removing half of each.
pub(crate) fn groups(
    out: &mut dyn io::Write,
    coupling: &CouplingReport,
    weights: &[GraphWeight],
    is_all: bool,
) -> io::Result<()> {
    let names = coupling.groups.iter().map(|group| places_of(group, weights, is_all)).collect();
    let likeness = Coupled(&coupling.groups, names);
    let n = coupling.groups.len();
    let rows = if is_all { TensorGroups::singles(n) } else { TensorGroups::of(n, &likeness) };
    let headings = ["groups", "units of each", "parameters in half", "weight/axis, × elements of a unit"];
    let cells = |row: usize| {
        let members: Vec<usize> = rows.members(row).collect();
        let removed =
            members.iter().map(|&group| coupling.n_parameters.saturating_sub(coupling.groups[group].n_left_at_half));
        vec![
            members.len().to_string(),
            coupling.groups[members[0]].n_units.to_string(),
            amount(removed.sum()),
            label(members.iter().map(|&group| likeness.name(group))),
        ]
    };
    put_table(out, (&headings, &[]), rows.len(), &cells)?;
    let share = 100.0 * coupling.n_left_at_half as f64 / coupling.n_parameters.max(1) as f64;
    writeln!(
        out,
        "\n50 % of each group: {} of {} parameters stay ({share:.1} %)",
        amount(coupling.n_left_at_half),
        amount(coupling.n_parameters)
    )
}

/// The places of a group, matrices before vectors.
fn places_of(group: &GroupFigures, weights: &[GraphWeight], is_all: bool) -> String {
    let place = |place: &briquette::pipeline::report::GroupPlace| {
        let width = if place.width > 1 { format!(" × {}", place.width) } else { String::new() };
        format!("{}/{}{width}", place.name, place.axis)
    };
    let n = if is_all { group.places.len() } else { MAX_PLACES };
    let mut sorted: Vec<_> = group.places.iter().collect();
    sorted.sort_by_key(|place| weights[place.weight].shape.len() < 2);
    let mut places: Vec<String> = sorted.into_iter().take(n).map(place).collect();
    let more = group.places.len().saturating_sub(n);
    places.extend((more > 0).then(|| format!("and {more} more")));
    places.join(", ")
}

/// Writes the totals, tensors that no node uses, and the path of the page.
pub(crate) fn totals(out: &mut dyn io::Write, found: &GraphReport, page: Option<&Path>) -> io::Result<()> {
    let GraphTotals { n_nodes, n_parameters, weight_bytes, multiply_adds } = found.totals;
    let inputs: Vec<String> = found
        .inputs
        .iter()
        .map(|&value| &found.values[value])
        .map(|value| format!("{} {}", value.name, shape_text(&value.shape)))
        .collect();
    writeln!(
        out,
        "\n{}: {}, {n_nodes} nodes, {} parameters in {}, {} multiply-adds for {}",
        printable(&found.model),
        printable(&found.family),
        amount(n_parameters),
        bytes(weight_bytes),
        amount(multiply_adds),
        printable(&inputs.join(", "))
    )?;
    if let Some((first, others)) = found.unused.split_first() {
        let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        writeln!(out, "No node uses the tensor {}{others}.", printable(first))?;
    }
    match page {
        Some(page) => writeln!(out, "wrote {}", printable(&page.to_string_lossy())),
        None => Ok(()),
    }
}
