//! Draws a diagram as SVG.

use super::layout::DiagramRows;
use crate::report::figures::{DiagramNode, GraphDiagram};
use crate::report::html::escape::escape;
use crate::report::numbers;
use maud::{Markup, PreEscaped, html};

const STYLE: &str = include_str!("graph.css");
/// Width and height of a box.
const BOX: [usize; 2] = [236, 58];
/// Space between boxes.
const GAP: [usize; 2] = [14, 30];
/// Space around the boxes of a section, with its heading.
const PAD: [usize; 2] = [16, 34];
/// Space between arrows beside the boxes.
const LANE: usize = 9;
/// Characters that fit in a box.
const N_LETTERS: usize = 38;
/// Space for the text of a box.
const TEXT: usize = BOX[0] - 18;
/// Widths of a letter of names, of other lines and of headings, in a wide font: a tenth of a pixel.
const LETTERS: [usize; 3] = [76, 66, 90];

/// Positions of everything that is drawn.
struct Plane<'a> {
    diagram: &'a GraphDiagram,
    rows: DiagramRows,
    /// The top of each row.
    tops: Vec<usize>,
    /// Width of all boxes, and of the whole figure.
    inner: usize,
    width: usize,
    height: usize,
}

/// Returns the figure.
pub(super) fn draw(diagram: &GraphDiagram) -> Markup {
    let plane = Plane::of(diagram);
    let (width, height) = (plane.width, plane.height);
    html! {
        svg class="graph" viewBox=(format_args!("0 0 {width} {height}")) style=(format_args!("width:{width}px")) role="img"
            aria-label="Graph of the network" {
            style { (PreEscaped(STYLE)) }
            @for section in 0..diagram.sections.len() { (plane.frame(section)) "\n" }
            @for line in plane.arrows() { path d=(line) {} "\n" }
            @for section in 0..diagram.sections.len() { (plane.heading(section)) "\n" }
            @for node in 0..diagram.nodes.len() { (plane.node(node)) "\n" }
        }
    }
}

impl<'a> Plane<'a> {
    fn of(diagram: &'a GraphDiagram) -> Self {
        let rows = DiagramRows::of(diagram);
        let mut tops = vec![0; rows.rows.len()];
        let mut y = GAP[1] / 2;
        let is_start = |row: usize| {
            let starts = |(index, [start, end]): (usize, &[usize; 2])| {
                *start == row && start < end && diagram.sections[index].is_of_blocks()
            };
            rows.sections.iter().enumerate().any(starts)
        };
        let is_end = |row: usize| {
            let ends = |(index, [start, end]): (usize, &[usize; 2])| {
                *end == row + 1 && start < end && diagram.sections[index].is_of_blocks()
            };
            rows.sections.iter().enumerate().any(ends)
        };
        for (row, top) in tops.iter_mut().enumerate() {
            y += if is_start(row) { PAD[1] } else { 0 };
            *top = y;
            y += BOX[1] + GAP[1] + if is_end(row) { PAD[0] } else { 0 };
        }
        let inner = rows.n_columns().max(1) * (BOX[0] + GAP[0]) - GAP[0];
        let width = inner + 2 * PAD[0] + (rows.n_lanes() + 1) * LANE;
        Self { diagram, rows, tops, inner, width, height: y.max(1) }
    }

    /// The left edge and the top of a box.
    fn corner(&self, node: usize) -> [usize; 2] {
        let row = self.rows.row_of[node];
        let nodes = &self.rows.rows[row];
        let place = nodes.iter().position(|&other| other == node).unwrap_or(0);
        let width = nodes.len() * (BOX[0] + GAP[0]) - GAP[0];
        [PAD[0] + (self.inner - width) / 2 + place * (BOX[0] + GAP[0]), self.tops[row]]
    }

    /// The top and the height of the frame of blocks.
    fn framed(&self, index: usize) -> Option<[usize; 2]> {
        let (section, [start, end]) = (&self.diagram.sections[index], self.rows.sections[index]);
        if start == end || !section.is_of_blocks() {
            return None;
        }
        let top = self.tops[start] - PAD[1] + 4;
        Some([top, self.tops[end - 1] + BOX[1] + PAD[0] - 4 - top])
    }

    fn frame(&self, index: usize) -> Markup {
        let Some([top, height]) = self.framed(index) else { return Markup::default() };
        html! { rect class="block" x="2" y=(top) width=(self.width - 4) height=(height) rx="8" {} }
    }

    /// The name of blocks and their sums, above the arrows.
    fn heading(&self, index: usize) -> Markup {
        let (Some([top, _]), section) = (self.framed(index), &self.diagram.sections[index]) else {
            return Markup::default();
        };
        let times = if section.n_blocks > 1 { format!("{} × ", section.n_blocks) } else { String::new() };
        let sums = [numbers::bytes(section.bytes), numbers::amount(section.multiply_adds)];
        let text = format!("{times}{} · {} · {}", section.blocks, sums[0], sums[1]);
        let fitted = fitted(&text, LETTERS[2], self.width - 2 * PAD[0]);
        html! {
            text class="heading" x=(PAD[0]) y=(top + 18) textLength=[fitted] lengthAdjust=[fitted.map(|_| SQUEEZED)] {
                (escape(&text))
            }
        }
    }

    /// The paths of all arrows.
    fn arrows(&self) -> Vec<String> {
        let ends = |[from, to]: [usize; 2]| {
            let ([x, y], [to_x, to_y]) = (self.corner(from), self.corner(to));
            ([x + BOX[0] / 2, y + BOX[1]], [to_x + BOX[0] / 2, to_y])
        };
        let short = |edge: &[usize; 2]| {
            let ([x, y], [to_x, to_y]) = ends(*edge);
            let middle = (y + to_y) / 2;
            format!("M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        };
        let long = |(edge, lane): &([usize; 2], usize)| {
            let ([x, y], [to_x, to_y]) = ends(*edge);
            let beside = PAD[0] + self.inner + (lane + 1) * LANE;
            // Within the gaps below the first box and above the second, so that no box is crossed.
            let (below, above) = (y + 9, to_y.saturating_sub(9));
            format!("M{x} {y}V{below}H{beside}V{above}H{to_x}V{to_y}")
        };
        self.rows.short.iter().map(short).chain(self.rows.long.iter().map(long)).collect()
    }

    /// A box with three lines of text, and everything about its node as a tooltip.
    fn node(&self, node: usize) -> Markup {
        let ([x, y], shown) = (self.corner(node), &self.diagram.nodes[node]);
        let [width, height] = BOX;
        let lines = [cut(&shown.name, false), cut(&what(shown), true), cut(&figures(shown), true)];
        html! {
            g transform=(format_args!("translate({x} {y})")) {
                title { (escape(&in_full(shown))) }
                rect class="node" width=(width) height=(height) rx="5" {}
                @if let Some(role) = shown.role {
                    rect class={ "role-" (role.name()) } width="5" height=(height) rx="2" {}
                }
                @for (index, line) in lines.iter().enumerate() {
                    @let fitted = fitted(line, LETTERS[index.min(1)], TEXT);
                    text class=[(index == 0).then_some("name")] x="12" y=(17 + 16 * index) textLength=[fitted]
                        lengthAdjust=[fitted.map(|_| SQUEEZED)] { (escape(line)) }
                }
            }
        }
    }
}

/// How a text is fitted: letters and spaces become narrower.
const SQUEEZED: &str = "spacingAndGlyphs";

/// The length to fit a text to, if it may be wider than its space in a wide font.
fn fitted(text: &str, letter: usize, space: usize) -> Option<usize> {
    (text.chars().count() * letter > 10 * space).then_some(space)
}

/// The operation, and the shape of its largest weight.
fn what(node: &DiagramNode) -> String {
    let largest =
        node.weights.iter().max_by_key(|weight| weight.shape.iter().fold(1_usize, |n, &m| n.saturating_mul(m)));
    match largest {
        Some(weight) => format!("{} {}", node.operation, numbers::shape_text(&weight.shape)),
        None => node.operation.clone(),
    }
}

fn figures(node: &DiagramNode) -> String {
    let mut parts = Vec::new();
    parts.extend((node.bytes > 0).then(|| numbers::bytes(node.bytes)));
    parts.extend((node.multiply_adds > 0).then(|| numbers::amount(node.multiply_adds)));
    format!(
        "{}→ {}",
        parts.iter().map(|part| format!("{part} · ")).collect::<String>(),
        numbers::shape_text(&node.output)
    )
    .replace("· →", "→")
}

/// Everything about a node, for a tooltip.
fn in_full(node: &DiagramNode) -> String {
    let weights: String =
        node.weights.iter().map(|weight| format!("; {} {}", weight.name, numbers::shape_text(&weight.shape))).collect();
    format!("{}: {}{weights}; {}", node.name, node.operation, figures(node))
}

/// Cuts a text to the width of a box, at its end or at its beginning.
fn cut(text: &str, at_end: bool) -> String {
    let n = text.chars().count();
    match n.checked_sub(N_LETTERS) {
        None | Some(0) => text.to_string(),
        Some(_) if at_end => text.chars().take(N_LETTERS - 1).chain(['…']).collect(),
        Some(excess) => std::iter::once('…').chain(text.chars().skip(excess + 1)).collect(),
    }
}
