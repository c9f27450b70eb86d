//! W4A8: 4-bit weights in groups times int8 activations, on integers.

use crate::activations::{ActivationElement, InputRounding};
use crate::group_layout::{GroupLayout, STEP_BYTES};
use crate::grouped_rows::GroupedRows;
use crate::linear::assert_shapes;
use crate::panel_layout::check_depth;
use crate::panels::{for_panels, threads_for};
use crate::simd::{self, OutputBlock, PANEL, W4A8Panel};
use briquette_core::Result;
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;
use std::cell::RefCell;

/// The size of a block of quantized rows, which stays in the L2 cache.
const BLOCK_BYTES: usize = 1 << 19;
/// The most rows of a block: the output pages of this many rows stay in the first-level TLB.
const BLOCK_ROWS: usize = 256;
/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 21;

thread_local! {
    static ROWS: RefCell<GroupedRows> = RefCell::default();
}

/// int4 weights `[n_out, n_in]` for int8 activations, with one scale for each `group` inputs of each output.
///
/// Panels have 32 outputs and 64 bytes for each step of 4 inputs: `[16][4]` bytes, output `j` in the low halves,
/// output `j + 16` in the high halves, as `code + 8`. Scales are `[n_out / 32][n_in / group][32]`.
#[derive(Clone)]
pub struct PackedW4A8 {
    n_out: usize,
    layout: GroupLayout,
    codes: AlignedBytes,
    scales: Vec<f32>,
    /// The sum of the weights of each output, to be multiplied by the zero point of activations.
    sums: Vec<f32>,
}

impl PackedW4A8 {
    /// Packs row-major `codes` `[n_out, n_in]` from -8 to 7 with the values `codes[o, i] * scales[o, i /
    /// group]`.
    ///
    /// The last group may be shorter.
    ///
    /// # Errors
    /// Refused: there are more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths do not match the shape, a code has more than 4 bits, or `group` is 0.
    pub fn new(codes: &[i8], scales: &[f32], n_out: usize, n_in: usize, group: usize) -> Result<Self> {
        assert!(group > 0, "groups of 0 inputs");
        check_depth(n_in)?;
        let layout = GroupLayout { n_in, group: group.min(n_in.max(1)) };
        let n_groups = layout.n_groups();
        assert_eq!(codes.len(), n_out * n_in, "{} codes for weights of [{n_out}, {n_in}]", codes.len());
        assert_eq!(scales.len(), n_out * n_groups, "{} scales for [{n_out}, {n_groups}]", scales.len());
        assert!(codes.iter().all(|code| (-8..8).contains(code)), "codes of 4 bits");
        let n_panels = n_out.div_ceil(PANEL);
        // Padding has stored codes of 0, so its products are 0 whatever the activations are.
        let mut packed = AlignedBytes::zeroed(n_panels * layout.n_steps() * STEP_BYTES);
        let mut panel_scales = vec![0.0; n_panels * n_groups * PANEL];
        let panels = packed.bytes_mut().par_chunks_exact_mut((layout.n_steps() * STEP_BYTES).max(1));
        panels.zip(codes.par_chunks((PANEL * n_in).max(1))).for_each(|(panel, rows)| pack_panel(rows, layout, panel));
        for (row, scales) in scales.chunks_exact(n_groups.max(1)).enumerate() {
            for (g, &scale) in scales.iter().enumerate() {
                panel_scales[(row / PANEL * n_groups + g) * PANEL + row % PANEL] = scale;
            }
        }
        let sum = |row: usize| sum_of_row(&codes[row * n_in..][..n_in], &scales[row * n_groups..], layout.group);
        let sums = (0..n_panels * PANEL).map(|row| if row < n_out { sum(row) } else { 0.0 }).collect();
        Ok(Self { n_out, layout, codes: packed, scales: panel_scales, sums })
    }

    /// Returns the number of outputs.
    pub const fn n_out(&self) -> usize {
        self.n_out
    }

    /// Returns the number of inputs.
    pub const fn n_in(&self) -> usize {
        self.layout.n_in
    }

    /// Returns the size in memory in bytes: half a byte per weight, and 4 per scale and output.
    pub fn n_bytes(&self) -> usize {
        self.codes.bytes().len() + 4 * (self.scales.len() + self.sums.len())
    }

    /// Dequantizes the weights of one output.
    ///
    /// # Panics
    /// If `row` is not an output, or `out` does not have the length `n_in`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n_out && out.len() == self.n_in(), "output {row} of {self:?}");
        for (col, out) in out.iter_mut().enumerate() {
            *out = f32::from(self.code(row, col)) * self.scale(row, col / self.layout.group);
        }
    }

    /// Returns the weights as f32, `[n_out, n_in]`.
    pub fn to_floats(&self) -> Vec<f32> {
        let mut floats = vec![0.0; self.n_out * self.n_in()];
        let rows = floats.par_chunks_exact_mut(self.n_in().max(1));
        rows.enumerate().for_each(|(row, out)| self.read_row(row, out));
        floats
    }

    /// Returns the codes `[n_out, n_in]` and the scales `[n_out, n_in / group]`.
    pub fn codes(&self) -> (Vec<i8>, Vec<f32>) {
        let (n_in, n_groups) = (self.n_in(), self.layout.n_groups());
        let codes = (0..self.n_out * n_in).map(|i| self.code(i / n_in, i % n_in)).collect();
        (codes, (0..self.n_out * n_groups).map(|i| self.scale(i / n_groups, i % n_groups)).collect())
    }

    fn code(&self, row: usize, col: usize) -> i8 {
        let (lane, place) = (row % PANEL, self.layout.place(col));
        let step = row / PANEL * self.layout.n_steps() + place / 4;
        let byte = self.codes.bytes()[step * STEP_BYTES + lane % 16 * 4 + place % 4];
        (byte >> (lane / 16 * 4) & 15) as i8 - 8
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[(row / PANEL * self.layout.n_groups() + group) * PANEL + row % PANEL]
    }

    fn panel<'a>(&'a self, index: usize, bias: Option<&'a [f32]>) -> W4A8Panel<'a> {
        let (n_codes, n_scales) = (self.layout.n_steps() * STEP_BYTES, self.layout.n_groups() * PANEL);
        W4A8Panel {
            codes: &self.codes.bytes()[index * n_codes..][..n_codes],
            scales: &self.scales[index * n_scales..][..n_scales],
            sums: &self.sums[index * PANEL..][..PANEL],
            bias: bias.map_or(&[][..], |bias| &bias[index * PANEL..bias.len().min((index + 1) * PANEL)]),
            steps_per_group: self.layout.steps_per_group(),
        }
    }
}

impl std::fmt::Debug for PackedW4A8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedW4A8 [{}, {}] by {}", self.n_out, self.n_in(), self.layout.group)
    }
}

/// Packs up to 32 rows as one panel of zeros.
fn pack_panel(rows: &[i8], layout: GroupLayout, panel: &mut [u8]) {
    for (lane, row) in rows.chunks_exact(layout.n_in).enumerate() {
        for (col, &code) in row.iter().enumerate() {
            let place = layout.place(col);
            let byte = &mut panel[place / 4 * STEP_BYTES + lane % 16 * 4 + place % 4];
            *byte |= ((code + 8) as u8) << (lane / 16 * 4);
        }
    }
}

/// Returns the sum of the weights of an output.
///
/// Groups are added as the kernels add them, so a row of equal activation codes at the zero point -128 or 0
/// gives exactly 0.
fn sum_of_row(codes: &[i8], scales: &[f32], group: usize) -> f32 {
    codes.chunks(group).zip(scales).fold(0.0, |total: f32, (codes, scale)| {
        let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        (sum as f32).mul_add(*scale, total)
    })
}

/// Computes `y[m, o] = sx[m] * (Σ_g s[o, g] * Σ_{i in g} q[m, i] * c[o, i] - z[m] * Σᵢ w[o, i]) + bias[o]`.
///
/// `q`, `sx` and `z` are the codes, scale and zero point of each row of `x`, as in [`int8_linear`](crate::int8_linear).
/// `c` and `s` are the codes and scales of the weights `w`. Groups are summed in 32-bit integers and added in f32,
/// in order. Every instruction set gives the same bits. A row of `x` with a NaN or an infinity gives a row of NaN.
///
/// # Panics
/// If `x` is not `[n_rows, n_in]`, `bias` not `[n_out]` or `y` not `[n_rows, n_out]`.
pub fn w4a8_linear<'c, T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    n_rows: usize,
    rounding: impl Into<InputRounding<'c>>,
    weights: &PackedW4A8,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let (n_in, n_out) = (weights.n_in(), weights.n_out);
    assert_shapes(x.len(), n_rows, [n_out, n_in], bias, y.len());
    let task = W4A8Linear { level, rounding: rounding.into(), weights, bias };
    task.run(x, OutputBlock::new(y, n_rows, n_out), threads_for(n_rows * n_in * n_out, PAYS));
}

struct W4A8Linear<'a> {
    level: SimdLevel,
    rounding: InputRounding<'a>,
    weights: &'a PackedW4A8,
    bias: Option<&'a [f32]>,
}

impl W4A8Linear<'_> {
    /// Splits rows over threads if each gets a few tiles of them, otherwise outputs.
    fn run<T: ActivationElement>(&self, x: &[T], out: OutputBlock, n_threads: usize) {
        let half = (out.n_rows() / 2).next_multiple_of(32);
        if n_threads > 1 && out.n_rows() >= 128 {
            let (x, out) = (x.split_at(half * self.weights.n_in()), out.split_rows(half));
            rayon::join(|| self.run(x.0, out.0, n_threads / 2), || self.run(x.1, out.1, n_threads.div_ceil(2)));
        } else {
            self.blocks(x, out, n_threads);
        }
    }

    fn blocks<T: ActivationElement>(&self, mut x: &[T], mut out: OutputBlock, n_threads: usize) {
        let n_in = self.weights.n_in();
        let block_rows = (BLOCK_BYTES / n_in.next_multiple_of(64).max(1)).clamp(32, BLOCK_ROWS) / 32 * 32;
        let mut rows = ROWS.take();
        while out.n_rows() > 0 {
            let n = block_rows.min(out.n_rows());
            let (now, later) = x.split_at(n * n_in);
            let (block, rest) = out.split_rows(n);
            rows.fill(self.level, now, n, self.weights.layout, self.rounding);
            for_panels(block, 0, n_threads, &|run| {
                run.for_each(|(index, _, out)| {
                    simd::multiply_w4a8_panel(self.level, rows.block(), self.weights.panel(index, self.bias), out);
                });
            });
            (x, out) = (later, rest);
        }
        ROWS.set(rows);
    }
}

#[cfg(test)]
mod tests;
