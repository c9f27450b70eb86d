//! Places the boxes of a diagram in rows, and its arrows between them.

use crate::report::figures::GraphDiagram;

/// Boxes of a row, at most. Further boxes of the same depth take another row.
const MAX_IN_ROW: usize = 4;

/// The rows of a diagram.
#[derive(Debug, Default)]
pub(super) struct DiagramRows {
    /// The nodes of each row, from left to right.
    pub(super) rows: Vec<Vec<usize>>,
    /// The row of each node.
    pub(super) row_of: Vec<usize>,
    /// For each section, its first row and the row after its last.
    pub(super) sections: Vec<[usize; 2]>,
    /// Arrows between neighbouring rows, `[from, to]`.
    pub(super) short: Vec<[usize; 2]>,
    /// Arrows that pass other rows, and the lane beside the boxes that each takes.
    pub(super) long: Vec<([usize; 2], usize)>,
}

impl DiagramRows {
    /// Places nodes by their depth within their section.
    pub(super) fn of(diagram: &GraphDiagram) -> Self {
        let mut found = Self { row_of: vec![0; diagram.nodes.len()], ..Self::default() };
        let n_inputs = diagram.sections.first().map_or(diagram.nodes.len(), |section| section.first_node);
        found.put(diagram, 0, n_inputs.min(diagram.nodes.len()));
        for section in &diagram.sections {
            let first = found.rows.len();
            let end = section.first_node.saturating_add(section.n_nodes).min(diagram.nodes.len());
            found.put(diagram, section.first_node, end);
            found.sections.push([first, found.rows.len()]);
        }
        found.connect(diagram);
        found
    }

    fn put(&mut self, diagram: &GraphDiagram, start: usize, end: usize) {
        let mut by_depth: Vec<Vec<usize>> = Vec::new();
        let mut depths = Vec::new();
        for node in start..end {
            let inner = diagram.nodes[node].inputs.iter().filter(|&&input| (start..node).contains(&input));
            let depth = inner.map(|&input| depths[input - start] + 1).max().unwrap_or(0);
            depths.push(depth);
            if by_depth.len() <= depth {
                by_depth.resize(depth + 1, Vec::new());
            }
            by_depth[depth].push(node);
        }
        for row in by_depth.iter().flat_map(|nodes| nodes.chunks(MAX_IN_ROW)) {
            for &node in row {
                self.row_of[node] = self.rows.len();
            }
            self.rows.push(row.to_vec());
        }
    }

    fn connect(&mut self, diagram: &GraphDiagram) {
        let mut long = Vec::new();
        for (to, node) in diagram.nodes.iter().enumerate() {
            for &from in node.inputs.iter().filter(|&&from| from < to) {
                match self.row_of[to].saturating_sub(self.row_of[from]) {
                    0 | 1 => self.short.push([from, to]),
                    _ => long.push([from, to]),
                }
            }
        }
        long.sort_by_key(|&[from, to]| (self.row_of[to] - self.row_of[from], from, to));
        // For each lane, the rows that its arrows pass.
        let mut lanes: Vec<Vec<[usize; 2]>> = Vec::new();
        for edge in long {
            let rows = edge.map(|node| self.row_of[node]);
            let is_free = |lane: &Vec<[usize; 2]>| lane.iter().all(|other| other[1] <= rows[0] || rows[1] <= other[0]);
            let lane = lanes.iter().position(is_free).unwrap_or(lanes.len());
            if lane == lanes.len() {
                lanes.push(Vec::new());
            }
            lanes[lane].push(rows);
            self.long.push((edge, lane));
        }
    }

    /// Number of boxes in the widest row.
    pub(super) fn n_columns(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Number of lanes beside the boxes.
    pub(super) fn n_lanes(&self) -> usize {
        self.long.iter().map(|(_, lane)| lane + 1).max().unwrap_or(0)
    }
}
