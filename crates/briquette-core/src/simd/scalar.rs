//! Portable versions of the functions of [`simd`](super), which define their results.
//!
//! They run if no faster version exists.

pub use super::fits::{half_quadratic_sums, near_squared_errors, squared_error};
pub use super::xxh3::{xxh3_blocks, xxh3_stripe};
use crate::{Affine, Grid, bits};

const MAGNITUDE: u32 = 0x7fff_ffff;

/// See [`keep_above`](super::keep_above).
pub fn keep_above(scores: &[f32], threshold: u32, drop_ties: &mut usize, bits: &mut [u8]) -> usize {
    bits.fill(0);
    let mut n_kept = 0;
    for (i, score) in scores.iter().enumerate() {
        let key = score.to_bits() & MAGNITUDE;
        let is_dropped_tie = key == threshold && *drop_ties > 0;
        *drop_ties -= usize::from(is_dropped_tie);
        let keep = key >= threshold && !is_dropped_tie;
        bits[i / 8] |= u8::from(keep) << (i % 8);
        n_kept += usize::from(keep);
    }
    n_kept
}

/// See [`count_below`](super::count_below).
pub fn count_below(scores: &[f32], threshold: u32) -> (usize, usize) {
    scores.iter().fold((0, 0), |(below, equal), score| {
        let key = score.to_bits() & MAGNITUDE;
        (below + usize::from(key < threshold), equal + usize::from(key == threshold))
    })
}

/// See [`nonzero_bits`](super::nonzero_bits).
pub fn nonzero_bits(values: &[f32], bits: &mut [u8]) -> usize {
    bits.fill(0);
    let mut n = 0;
    for (i, &value) in values.iter().enumerate() {
        bits[i / 8] |= u8::from(value.to_bits() != 0) << (i % 8);
        n += usize::from(value.to_bits() != 0);
    }
    n
}

/// See [`copy_kept`](super::copy_kept).
pub fn copy_kept(from: &[f32], bits: &[u8], to: &mut [f32]) {
    for (i, (to, &from)) in to.iter_mut().zip(from).enumerate() {
        *to = if bits::get(bits, i) { from } else { 0.0 };
    }
}

/// See [`max_magnitude`](super::max_magnitude).
#[inline(always)]
pub fn max_magnitude(values: &[f32]) -> u32 {
    values.iter().map(|value| value.to_bits() & MAGNITUDE).fold(0, u32::max)
}

/// See [`min_max`](super::min_max).
#[inline(always)]
pub fn min_max(values: &[f32]) -> (f32, f32) {
    let Some(&first) = values.first() else { return (0.0, 0.0) };
    // Maps floats to integers in the same order: a minimum over integers vectorises, one over floats does not.
    let ordered = |value: f32| (value.to_bits() as i32) ^ ((value.to_bits() as i32) >> 31 & 0x7fff_ffff);
    let (min, max) = values.iter().fold((ordered(first), ordered(first)), |(min, max), &value| {
        (min.min(ordered(value)), max.max(ordered(value)))
    });
    let float = |order: i32| f32::from_bits((order ^ (order >> 31 & 0x7fff_ffff)) as u32);
    (float(min), float(max))
}

/// Adding 1.5 · 2^23 leaves the nearest integer of a small float, halves to even, in its low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// See [`quantize`](super::quantize).
///
/// A code is the rounded quotient, but multiplying by the inverse is faster. The product differs from the
/// quotient by less than 1e-4 (255 steps, an ulp or two each). Only if a product is that close to a half, the
/// run is divided instead.
#[inline(always)]
pub fn quantize(values: &[f32], affine: Affine, grid: Grid, codes: &mut [i8]) {
    const RUN: usize = 32;
    const CLOSE_TO_HALF: f32 = 0.5 - 1e-4;
    let inverse = 1.0 / affine.scale;
    if !inverse.is_normal() {
        return divide(values, affine, grid, codes);
    }
    let (low, high) = affine.code_bounds(grid);
    let ((runs, rest), (code_runs, code_rest)) = (values.as_chunks::<RUN>(), codes.as_chunks_mut::<RUN>());
    for (values, codes) in runs.iter().zip(code_runs) {
        let mut is_close = false;
        for (code, value) in codes.iter_mut().zip(values) {
            let steps = (value * inverse).clamp(low, high);
            let rounded = steps + ROUND;
            is_close |= (steps - (rounded - ROUND)).abs() > CLOSE_TO_HALF;
            *code = code_of(rounded, affine);
        }
        if is_close {
            divide(values, affine, grid, codes);
        }
    }
    divide(rest, affine, grid, code_rest);
}

/// Quantizes by division: the definition of [`quantize`].
#[inline(always)]
fn divide(values: &[f32], affine: Affine, grid: Grid, codes: &mut [i8]) {
    let (low, high) = affine.code_bounds(grid);
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = code_of((value / affine.scale).clamp(low, high) + ROUND, affine);
    }
}

/// Returns the code of a quotient to which [`ROUND`] was added.
#[inline(always)]
fn code_of(rounded: f32, affine: Affine) -> i8 {
    (rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32 + i32::from(affine.zero)) as i8
}

/// See [`dequantize`](super::dequantize).
#[inline(always)]
pub fn dequantize(codes: &[i8], affine: Affine, values: &mut [f32]) {
    let zero = i32::from(affine.zero);
    for (value, &code) in values.iter_mut().zip(codes) {
        *value = (i32::from(code) - zero) as f32 * affine.scale;
    }
}

/// Appends the `width`-byte elements whose bit is set.
pub fn compress(values: &[u8], width: usize, bits: &[u8], out: &mut Vec<u8>) {
    for (i, element) in values.chunks_exact(width).enumerate() {
        if bits::get(bits, i) {
            out.extend_from_slice(element);
        }
    }
}

/// See [`compress8`](super::compress8).
pub fn compress8(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
    compress(values, 1, bits, out);
}

/// See [`compress32`](super::compress32).
pub fn compress32(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
    compress(values, 4, bits, out);
}

/// See [`compress16`](super::compress16).
pub fn compress16(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
    compress(values, 2, bits, out);
}

/// See [`collect_between`](super::collect_between).
pub fn collect_between(scores: &[f32], low: u32, high: u32, out: &mut Vec<u32>) -> usize {
    let keys = scores.iter().map(|score| score.to_bits() & MAGNITUDE);
    out.extend(keys.clone().filter(|key| (low..=high).contains(key)));
    keys.filter(|&key| key < low).count()
}

/// See [`collect_between_bf16`](super::collect_between_bf16).
pub fn collect_between_bf16(halves: &[u16], low: u32, high: u32, out: &mut Vec<u32>) -> usize {
    let keys = halves.iter().map(|&half| (u32::from(half) << 16) & MAGNITUDE);
    out.extend(keys.clone().filter(|key| (low..=high).contains(key)));
    keys.filter(|&key| key < low).count()
}

/// See [`widen_bf16`](super::widen_bf16).
#[inline(always)]
pub fn widen_bf16(halves: &[u16], values: &mut [f32]) {
    for (value, &half) in values.iter_mut().zip(halves) {
        // The bits are moved without arithmetic, so a signalling NaN is unchanged.
        *value = f32::from_bits(u32::from(half) << 16);
    }
}

/// See [`expand`](super::expand).
pub fn expand(packed: &[u8], width: usize, bits: &[u8], out: &mut [u8]) -> usize {
    let mut used = 0;
    for (i, element) in out.chunks_exact_mut(width).enumerate() {
        if bits::get(bits, i) {
            element.copy_from_slice(&packed[used * width..(used + 1) * width]);
            used += 1;
        } else {
            element.fill(0);
        }
    }
    used
}

/// See [`keep`](super::keep).
pub fn keep(from: &[u8], width: usize, bits: &[u8], to: &mut [u8]) {
    let elements = from.chunks_exact(width).zip(to.chunks_exact_mut(width));
    for (i, (from, to)) in elements.enumerate() {
        if bits::get(bits, i) { to.copy_from_slice(from) } else { to.fill(0) }
    }
}

/// See [`keep16`](super::keep16).
pub fn keep16(from: &[u8], bits: &[u8], to: &mut [u8]) {
    keep(from, 2, bits, to);
}

/// See [`expand16`](super::expand16).
pub fn expand16(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize {
    expand(packed, 2, bits, out)
}

/// See [`expand32`](super::expand32).
pub fn expand32(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize {
    expand(packed, 4, bits, out)
}

/// See [`expand8`](super::expand8).
pub fn expand8(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize {
    expand(packed, 1, bits, out)
}

/// See [`error_sums`](super::error_sums).
#[inline(always)]
pub fn error_sums(original: &[f32], fake_quantized: &[f32]) -> [f64; 4] {
    const LANES: usize = 16;
    /// Values per block: few enough that the sixteen running f32 sums stay accurate.
    const BLOCK: usize = 64 * LANES;
    let mut total = [0.0_f64; 4];
    for (original, fake_quantized) in original.chunks(BLOCK).zip(fake_quantized.chunks(BLOCK)) {
        let mut sums = [[0.0_f32; LANES]; 4];
        let add = |sums: &mut [[f32; LANES]; 4], original: &[f32; LANES], fake_quantized: &[f32; LANES]| {
            for lane in 0..LANES {
                let (w, v) = (original[lane], fake_quantized[lane]);
                sums[0][lane] += w * w;
                sums[1][lane] += (w - v) * (w - v);
                sums[2][lane] += w * v;
                sums[3][lane] += v * v;
            }
        };
        let ((whole_w, rest_w), (whole_v, rest_v)) = (original.as_chunks(), fake_quantized.as_chunks());
        for (w, v) in whole_w.iter().zip(whole_v) {
            add(&mut sums, w, v);
        }
        let (mut w, mut v) = ([0.0; LANES], [0.0; LANES]);
        w[..rest_w.len()].copy_from_slice(rest_w);
        v[..rest_v.len()].copy_from_slice(rest_v);
        add(&mut sums, &w, &v);
        for (total, lanes) in total.iter_mut().zip(sums) {
            *total += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
    }
    total
}
