//! Pages of graphs: every node is drawn once, names are escaped, arrows pass no box.

use super::layout::DiagramRows;
use super::{MAX_NODES, of_graph};
use crate::report::figures::GraphReport;
use crate::report::graph::{GraphDetail, report};
use briquette_core::DType;
use briquette_graph::op::{Attention, Composite, ElementFunction};
use briquette_graph::{GraphBuilder, Headers, ValueId};
use std::path::Path;

/// A transformer without norms, whose output layer has a hostile name.
fn of_blocks(n: usize, detail: GraphDetail) -> GraphReport {
    let headers = Headers::new(&[], None);
    let mut to = GraphBuilder::new("a <b>family</b>", &headers);
    let mut x = to.input("x", &[1, 4, 8]);
    for index in 0..n {
        let path = format!("layers.{index}");
        to.begin_block(&path);
        let linear = |to: &mut GraphBuilder, name: &str, x: ValueId| {
            to.declare(&format!("{path}.{name}.weight"), DType::F32, &[8, 8]);
            to.linear(&format!("{path}.{name}"), x).unwrap()
        };
        let [q, k, v] = ["q", "k", "v"].map(|name| linear(&mut to, name, x));
        let attention = Composite::Attention(Attention::full(2));
        let mixed = to.node(&format!("{path}.attention"), attention, &[q.into(), k.into(), v.into()]);
        let y = linear(&mut to, "o", mixed);
        x = to.add(&format!("{path}.sum"), x, y);
        to.end_block();
    }
    to.declare("<script>.weight", DType::F32, &[8, 8]);
    let x = to.linear("<script>", x).unwrap();
    let x = to.function("relu", ElementFunction::Relu, x);
    report(&to.finish(&[x]), Path::new("models/<i>"), detail).unwrap()
}

#[test]
fn equal_blocks_are_drawn_once_and_named_with_their_number() {
    let page = of_graph(&of_blocks(6, GraphDetail::default()));
    assert!(page.contains("6 × layers.0 to 5"), "{page}");
    assert_eq!(page.matches("class=\"node\"").count(), 1 + 6 + 2);
    let all = of_graph(&of_blocks(6, GraphDetail { is_unfolded: true, ..GraphDetail::default() }));
    assert_eq!(all.matches("class=\"node\"").count(), 1 + 6 * 6 + 2);
    let few = of_graph(&of_blocks(1, GraphDetail { is_lowered: true, ..GraphDetail::default() }));
    assert!(few.contains("transpose, [0, 2, 1, 3]") && few.contains("primitive operation"), "{few}");
}

#[test]
fn names_are_escaped_and_nothing_is_requested() {
    let page = of_graph(&of_blocks(2, GraphDetail { with_groups: true, ..GraphDetail::default() }));
    assert!(!page.contains("<script>.weight") && !page.contains("<b>family") && !page.contains("models/<i>"));
    assert!(page.contains("Coupling groups") && page.contains("&lt;script&gt;"));
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page, of_graph(&of_blocks(2, GraphDetail { with_groups: true, ..GraphDetail::default() })));
}

#[test]
fn arrows_that_pass_rows_have_lanes_without_overlap() {
    let diagram = of_blocks(3, GraphDetail { is_unfolded: true, ..GraphDetail::default() }).diagram;
    let rows = DiagramRows::of(&diagram);
    let mut shown: Vec<usize> = rows.rows.concat();
    shown.sort_unstable();
    assert_eq!(shown, (0..diagram.nodes.len()).collect::<Vec<_>>());
    assert_eq!(rows.long.len(), 3, "the residual connections");
    for (index, ([from, to], lane)) in rows.long.iter().enumerate() {
        for ([other_from, other_to], other_lane) in &rows.long[..index] {
            let is_apart = rows.row_of[*other_to] <= rows.row_of[*from] || rows.row_of[*to] <= rows.row_of[*other_from];
            assert!(lane != other_lane || is_apart);
        }
    }
    let n_inputs: usize = diagram.nodes.iter().map(|node| node.inputs.len()).sum();
    assert_eq!(rows.short.len() + rows.long.len(), n_inputs);
}

#[test]
fn a_graph_with_very_many_nodes_is_not_drawn() {
    let n = MAX_NODES / 6 + 1;
    let page = of_graph(&of_blocks(n, GraphDetail { is_unfolded: true, ..GraphDetail::default() }));
    assert!(page.contains("too many to draw") && page.len() < 60_000, "{}", page.len());
}

#[test]
fn long_lines_are_fitted_to_their_box_and_headings_are_above_arrows() {
    let mut report = of_blocks(2, GraphDetail::default());
    report.diagram.nodes[1].name = "encoder.layers.0.attention.".to_string() + &"x".repeat(30);
    let page = of_graph(&report);
    assert!(
        page.contains("class=\"name\" x=\"12\" y=\"17\" textLength=\"218\" lengthAdjust=\"spacingAndGlyphs\">…"),
        "{page}"
    );
    assert!(page.contains("class=\"name\" x=\"12\" y=\"17\">x</text>"), "a short name keeps its width");
    let at = |text: &str| page.rfind(text).unwrap_or_else(|| panic!("{text}"));
    assert!(at("<path d=") < at("class=\"heading\"") && at("class=\"heading\"") < at("class=\"node\""));
}
