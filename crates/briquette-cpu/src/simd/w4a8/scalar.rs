//! The reference for 4-bit weights and int8 activations, which the compiler vectorizes, and its operands.
//!
//! Weights are unsigned, `code + 8`, and activations are signed, so that `vpdpbusd` and `vpmaddubsw` multiply
//! them. `Σ q * (code + 8) = Σ q * code + 8 * Σ q`, so each sum starts at `-8 * Σ q`, the offset of its group.

use crate::group_layout::{GroupLayout, STEP_BYTES};
use crate::simd::block::OutputBlock;
use crate::simd::operands::PANEL;

/// A panel of [`PackedW4A8`](crate::PackedW4A8).
#[derive(Clone, Copy)]
pub(crate) struct W4A8Panel<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    /// The sum of the weights of each output.
    pub(crate) sums: &'a [f32],
    /// The bias of each output; empty without a bias.
    pub(crate) bias: &'a [f32],
    pub(crate) steps_per_group: usize,
}

impl<'a> W4A8Panel<'a> {
    /// Returns the codes and scales of each group.
    #[inline(always)]
    pub(super) fn groups(self) -> impl Iterator<Item = (&'a [[u8; STEP_BYTES]], &'a [f32; PANEL])> {
        let steps = self.codes.as_chunks::<STEP_BYTES>().0;
        steps.chunks(self.steps_per_group.max(1)).zip(self.scales.as_chunks::<PANEL>().0)
    }
}

/// Rows of signed activation codes, `stride` bytes apart.
#[derive(Clone, Copy)]
pub(crate) struct GroupedBlock<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) n_groups: usize,
    /// `-8 * Σ q` of each group, `[n_rows, n_groups]`.
    pub(crate) offsets: &'a [i32],
    pub(crate) scales: &'a [f32],
    /// The zero point of each row, minus 128.
    pub(crate) zeros: &'a [f32],
}

impl GroupedBlock<'_> {
    pub(crate) fn n_rows(&self) -> usize {
        self.scales.len()
    }
}

/// Copies the codes of a row as signed codes in padded groups, and sets the offset of each group.
#[inline(always)]
pub(super) fn group_row(from: &[u8], layout: GroupLayout, to: &mut [u8], offsets: &mut [i32]) {
    let places = to.chunks_mut(4 * layout.steps_per_group());
    for ((from, to), offset) in from.chunks(layout.group).zip(places).zip(offsets) {
        *offset = -8 * (copy_signed(from, to) - 128 * from.len() as i32);
    }
}

/// Copies unsigned codes as signed codes, and returns the sum of the unsigned codes.
#[inline(always)]
fn copy_signed(from: &[u8], to: &mut [u8]) -> i32 {
    // Loops of constant length stay in registers; groups are usually a multiple of 32.
    let ((blocks, rest), (to_blocks, to_rest)) = (from.as_chunks::<32>(), to.as_chunks_mut::<32>());
    let mut sum = 0;
    for (from, to) in blocks.iter().zip(&mut *to_blocks) {
        *to = from.map(|code| code ^ 0x80);
        sum += from.iter().map(|&code| i32::from(code)).sum::<i32>();
    }
    let to_rest = to_blocks.get_mut(blocks.len()).map_or(to_rest, |block| block.as_mut_slice());
    for (to, &code) in to_rest.iter_mut().zip(rest) {
        *to = code ^ 0x80;
        sum += i32::from(code);
    }
    sum
}

/// Multiplies rows by one panel.
pub(super) fn multiply_panel(rows: GroupedBlock, panel: W4A8Panel, out: &mut OutputBlock) {
    for row in 0..rows.n_rows() {
        let mut codes = rows.codes[row * rows.stride..].as_chunks::<4>().0;
        let offsets = &rows.offsets[row * rows.n_groups..];
        let mut totals = [0.0_f32; PANEL];
        for ((steps, scales), &offset) in panel.groups().zip(offsets) {
            let sums = sums_of_group(codes, steps, offset);
            codes = &codes[steps.len()..];
            for j in 0..PANEL {
                totals[j] = (sums[j] as f32).mul_add(scales[j], totals[j]);
            }
        }
        finish(&totals, row, rows, panel, out);
    }
}

fn sums_of_group(codes: &[[u8; 4]], steps: &[[u8; STEP_BYTES]], offset: i32) -> [i32; PANEL] {
    let mut sums = [offset; PANEL];
    for (codes, weights) in codes.iter().zip(steps) {
        let codes = codes.map(|code| i32::from(code as i8));
        for (j, weights) in weights.as_chunks::<4>().0.iter().enumerate() {
            for t in 0..4 {
                sums[j] += codes[t] * i32::from(weights[t] & 15);
                sums[j + 16] += codes[t] * i32::from(weights[t] >> 4);
            }
        }
    }
    sums
}

/// Writes the outputs of a row: `(total - zero * sum of weights) * scale + bias`.
#[inline(always)]
pub(super) fn finish(totals: &[f32; PANEL], row: usize, rows: GroupedBlock, panel: W4A8Panel, out: &mut OutputBlock) {
    let (zero, scale) = (rows.zeros[row], rows.scales[row]);
    for (j, value) in out.row(row).iter_mut().enumerate() {
        let total = (-zero).mul_add(panel.sums[j], totals[j]);
        *value = total.mul_add(scale, panel.bias.get(j).copied().unwrap_or(0.0));
    }
}
