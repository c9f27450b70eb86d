//! Attention with all products in 8-bit codes, one sequence and head at a time.
//!
//! Scores never leave the cache.

use crate::activations::{ActivationGrid, InputRounding};
use crate::float::{AttentionShape, softmax_codes};
use crate::linear::multiply_rows;
use crate::panel_layout::panel_bytes;
use crate::panels::threads_for;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{Kernel, OutputBlock, PANEL, PanelColumns, RowBlock, turn_rows, weave_rows};
use crate::weights::Int8Weights;
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;
use std::cell::RefCell;
use std::f32::consts::LOG2_E;

/// Queries that are multiplied together.
const ROWS: usize = 32;
/// The smallest scale of values relative to the largest; the inverse of a smaller scale could overflow.
const TINY: f32 = 1e-12;
/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 22;

thread_local! {
    static SEQUENCE: RefCell<SequenceCodes> = RefCell::default();
    static HEAD: RefCell<HeadCodes> = RefCell::default();
}

/// The projections of a self-attention layer, and its mask.
pub struct SelfAttention<'a> {
    /// Weights and biases of the query, key and value projections.
    pub layers: [(&'a dyn Int8Weights, Option<&'a [f32]>); 3],
    /// How tokens are quantized.
    pub inputs: InputRounding<'a>,
    /// How queries, keys and values are quantized: symmetrically, or on fixed grids whose code of 0 is 128.
    pub operands: [ActivationGrid; 3],
    /// The sizes of the layer. The width of a head must be a multiple of 4.
    pub shape: AttentionShape,
    /// `[batch, length]`, or empty without padding.
    pub padding: &'a [bool],
}

/// Computes `softmax(q kᵀ / sqrt(width)) v` for every head like [`attention`](crate::float::attention), in
/// 8-bit codes.
///
/// Queries, keys and values are [`int8_linear`](crate::int8_linear) of tokens `x`, `[batch, length, n_in]`,
/// which are quantized once for all three. Rows of queries, keys and values are quantized with a scale for each
/// token, or on fixed grids. The product of an attention weight and the scale of its value has 255 steps, relative to the
/// largest product of the query. A token with a NaN or an infinity makes every output that attends to it NaN, except on fixed
/// grids. A sequence of only padding gives NaN.
///
/// # Panics
/// If the lengths do not match the shape, 4 does not divide the width of a head, or the code of 0 is not 128.
pub fn int8_self_attention(level: SimdLevel, x: &[f32], layers: &SelfAttention, out: &mut [f32]) {
    let AttentionShape { batch, length, width, .. } = layers.shape;
    let (n_tokens, n_in, [n, n_kv]) = (batch * length, layers.layers[0].0.n_in(), layers.n_outs());
    let n_outs = layers.layers.map(|(weights, _)| (weights.n_out(), weights.n_in()));
    assert_eq!(n_outs, [(n, n_in), (n_kv, n_in), (n_kv, n_in)], "weights for {:?}", layers.shape);
    assert_eq!((x.len(), out.len()), (n_tokens * n_in, n_tokens * n), "tokens and outputs of {:?}", layers.shape);
    assert!(layers.padding.is_empty() || layers.padding.len() == n_tokens, "padding of {:?}", layers.shape);
    assert!(width.is_multiple_of(4), "heads of {width}");
    assert!(layers.operands.iter().all(|grid| has_middle_zero(*grid)), "operands on {:?}", layers.operands);
    if n_tokens * n_in * n == 0 {
        return;
    }
    let n_threads = threads_for(n_tokens * n_in * (n + 2 * n_kv), PAYS);
    let all = x.chunks_exact(length * n_in).zip(out.chunks_exact_mut(length * n)).enumerate();
    if batch > 1 && n_threads > 1 {
        let all: Vec<_> = all.collect();
        all.into_par_iter().for_each(|(at, (x, out))| of_sequence(level, layers, at, x, out, 1));
    } else {
        all.for_each(|(at, (x, out))| of_sequence(level, layers, at, x, out, n_threads));
    }
}

impl SelfAttention<'_> {
    /// Returns the elements of a query, and of a key or value.
    const fn n_outs(&self) -> [usize; 2] {
        [self.shape.n_heads * self.shape.width, self.shape.n_kv_heads * self.shape.width]
    }
}

/// Returns whether the code of 0 is 128.
fn has_middle_zero(grid: ActivationGrid) -> bool {
    match grid {
        ActivationGrid::Symmetric | ActivationGrid::SymmetricFull => true,
        ActivationGrid::Asymmetric => false,
        ActivationGrid::Fixed(grid) => grid.zero == 128,
    }
}

/// The codes of one sequence.
#[derive(Default)]
struct SequenceCodes {
    tokens: QuantizedRows,
    products: Vec<f32>,
    /// Rows of queries, keys and values.
    rows: [QuantizedRows; 3],
    /// The epilogue of scores for the keys of every head, without the sums of codes.
    columns: Vec<PanelColumns>,
    /// For each key, the inverse of its value's scale.
    factors: Vec<f32>,
}

impl SequenceCodes {
    /// Sets the epilogue of scores, which are base 2 logarithms of attention weights times the scales of
    /// values.
    fn finish_keys(&mut self, padding: &[bool]) {
        let Self { rows: [_, keys, values], columns, factors, .. } = self;
        let n = keys.n_rows();
        columns.clear();
        columns.resize(n.div_ceil(PANEL), PanelColumns { bias: [f32::NEG_INFINITY; PANEL], ..PanelColumns::EMPTY });
        factors.clear();
        factors.resize(columns.len() * PANEL, 0.0);
        let least = TINY * values.scales().iter().copied().fold(0.0, f32::max);
        for (at, (&key, &value)) in keys.scales().iter().zip(values.scales()).enumerate() {
            // `f32::max` would replace a NaN.
            let value = if value < least { least } else { value };
            let (columns, lane) = (&mut columns[at / PANEL], at % PANEL);
            columns.scales[lane] = key;
            if !padding.get(at).is_some_and(|is_padding| *is_padding) {
                columns.bias[lane] = value.log2();
                factors[at] = if key.is_nan() { key } else { 1.0 / value };
            }
        }
    }
}

fn of_sequence(level: SimdLevel, layers: &SelfAttention, at: usize, x: &[f32], out: &mut [f32], n_threads: usize) {
    let (length, n_in) = (layers.shape.length, layers.layers[0].0.n_in());
    let mut codes = SEQUENCE.take();
    let SequenceCodes { tokens, products, rows, .. } = &mut codes;
    tokens.fill(level, x, n_in, length, layers.inputs);
    for ((rows, (weights, bias)), grid) in rows.iter_mut().zip(layers.layers).zip(layers.operands) {
        let n = weights.n_out();
        products.resize(length * n, 0.0);
        multiply_rows(level, tokens.block(), weights, bias, OutputBlock::new(products, length, n), n_threads);
        rows.fill(level, products, n, length, grid);
    }
    codes.finish_keys(if layers.padding.is_empty() { &[] } else { &layers.padding[at * length..][..length] });
    attend(level, layers.shape, &codes, OutputBlock::new(out, length, layers.n_outs()[0]), n_threads);
    SEQUENCE.set(codes);
}

/// Computes all heads of one sequence.
fn attend(level: SimdLevel, shape: AttentionShape, sequence: &SequenceCodes, mut out: OutputBlock, n_threads: usize) {
    let mut heads = Vec::with_capacity(shape.n_heads);
    for head in 0..shape.n_heads {
        let (columns, later) = out.split_cols(shape.width);
        heads.push((head, columns));
        out = later;
    }
    let run = |(head, out): (usize, OutputBlock)| {
        let mut codes = HEAD.take();
        let kv_head = head * shape.n_kv_heads / shape.n_heads;
        let of_head = [head, kv_head, kv_head].map(|head| head * shape.width);
        codes.attend(level, sequence, of_head, shape.is_causal, out);
        HEAD.set(codes);
    };
    if n_threads > 1 {
        heads.into_par_iter().for_each(run);
    } else {
        heads.into_iter().for_each(run);
    }
}

/// The operands of one head.
#[derive(Default)]
struct HeadCodes {
    /// Panels of 32 keys, `[width / 4][32][4]`.
    keys: AlignedBytes,
    key_columns: Vec<PanelColumns>,
    /// Panels of 32 columns, `[keys / 4][32][4]`.
    values: AlignedBytes,
    /// Scores of keys for some queries, and their attention weights as codes.
    scores: Vec<f32>,
    weights: AlignedBytes,
}

impl HeadCodes {
    /// Computes the outputs of a head whose queries, keys and values start at these columns.
    fn attend(
        &mut self,
        level: SimdLevel,
        of: &SequenceCodes,
        [q, k, v]: [usize; 3],
        is_causal: bool,
        out: OutputBlock,
    ) {
        let (width, mut out) = (out.n_cols(), out);
        self.lay_out(level, of, [k, v], width);
        let queries = &of.rows[0];
        for first in (0..queries.n_rows()).step_by(ROWS) {
            let n = ROWS.min(queries.n_rows() - first);
            let (block, later) = out.split_rows(n);
            self.score(level, queries, (first, n), q, width);
            let scales =
                self.weigh(level, &queries.scales()[first..first + n], &of.factors, is_causal.then_some(first));
            self.sum_up(level, &scales[..n], block);
            out = later;
        }
    }

    /// Arranges keys and values for their products.
    fn lay_out(&mut self, level: SimdLevel, of: &SequenceCodes, [k, v]: [usize; 2], width: usize) {
        let [_, keys, values] = &of.rows;
        self.keys.make_room(of.columns.len() * panel_bytes(width));
        self.key_columns.clear();
        self.key_columns.extend_from_slice(&of.columns);
        let panels = self.keys.codes_mut().chunks_exact_mut(panel_bytes(width));
        for (index, (panel, columns)) in panels.zip(&mut self.key_columns).enumerate() {
            turn_rows(level, keys.block(), (index * PANEL, k), panel, &mut columns.sums);
        }
        let per_panel = panel_bytes(values.n_rows());
        self.values.make_room(width.div_ceil(PANEL) * per_panel);
        for (index, panel) in self.values.codes_mut().chunks_exact_mut(per_panel).enumerate() {
            let first = index * PANEL;
            weave_rows(level, values.block(), v + first..v + width.min(first + PANEL), panel);
        }
    }

    /// Computes scores of `n` queries starting at `first`, as base 2 logarithms of attention weights times the
    /// scales of values.
    fn score(
        &mut self,
        level: SimdLevel,
        queries: &QuantizedRows,
        (first, n): (usize, usize),
        column: usize,
        width: usize,
    ) {
        let (block, n_lanes) = (queries.block().part(first, n), self.key_columns.len() * PANEL);
        let (unit, mut scales) = (LOG2_E / (width as f32).sqrt(), [0.0; ROWS]);
        scales.iter_mut().zip(block.scales).for_each(|(to, scale)| *to = scale * unit);
        let rows = RowBlock { codes: &block.codes[column..], scales: &scales[..n], ..block };
        self.scores.resize(ROWS * n_lanes, 0.0);
        let mut out = OutputBlock::new(&mut self.scores[..n * n_lanes], n, n_lanes);
        let mut kernel = Kernel::new(level, rows);
        let panels = self.keys.codes().chunks_exact(panel_bytes(width).max(1));
        for (panel, columns) in panels.zip(&self.key_columns) {
            let (now, later) = out.split_cols(PANEL);
            kernel.multiply_panel(panel, &[], columns, now);
            out = later;
        }
    }

    /// Converts scores to attention weights as codes, and returns the scale of each row.
    ///
    /// If `first`, the position of the first query, is given, later keys are masked.
    fn weigh(&mut self, level: SimdLevel, queries: &[f32], factors: &[f32], first: Option<usize>) -> [f32; ROWS] {
        let n_lanes = factors.len();
        let stride = row_stride(n_lanes);
        self.weights.make_room(ROWS * stride);
        let n = queries.len();
        if let Some(first) = first {
            for (row, scores) in self.scores.chunks_exact_mut(n_lanes.max(1)).take(n).enumerate() {
                scores[(first + row + 1).min(n_lanes)..].fill(f32::NEG_INFINITY);
            }
        }
        let mut sums = [0.0; ROWS];
        let (scores, codes) = (&self.scores[..n * n_lanes], self.weights.bytes_mut());
        softmax_codes(level, scores, factors, (codes, stride), &mut sums[..n]);
        for (sum, query) in sums.iter_mut().zip(queries) {
            *sum = if query.is_nan() { f32::NAN } else { 1.0 / *sum };
        }
        sums
    }

    /// Sums the values, weighted by the codes of some queries.
    fn sum_up(&self, level: SimdLevel, scales: &[f32], mut out: OutputBlock) {
        let (stride, zeros) = (row_stride(self.key_columns.len() * PANEL), [0; ROWS]);
        let rows = RowBlock { codes: self.weights.bytes(), stride, scales, zeros: &zeros[..scales.len()] };
        let mut kernel = Kernel::new(level, rows);
        let per_panel = self.values.codes().len() / out.n_cols().div_ceil(PANEL).max(1);
        for panel in self.values.codes().chunks_exact(per_panel.max(1)) {
            let n = PANEL.min(out.n_cols());
            let (now, later) = out.split_cols(n);
            kernel.multiply_panel(panel, &[], &PanelColumns { scales: [1.0; PANEL], n, ..PanelColumns::EMPTY }, now);
            out = later;
        }
    }
}

/// Returns the bytes between rows of codes: an odd number of cache lines, so that the rows of a tile use
/// different cache sets.
const fn row_stride(n: usize) -> usize {
    (n.div_ceil(64) | 1) * 64
}

#[cfg(test)]
mod tests;
