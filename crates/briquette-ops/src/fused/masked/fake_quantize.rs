//! Fake quantization of masked weights in training: one pass forward, one pass backward.

use crate::fused::masked::filled::filled;
use briquette_core::{Grid, Grouping, OutputAxis, Rows};
use rayon::prelude::*;

/// Elements per task: enough to justify waking a thread, few enough for its cache.
const CHUNK: usize = 1 << 15;

/// Adding and subtracting this rounds a small float to the nearest integer, halves to even, and turns -0 into
/// +0 like a code.
const ROUND: f32 = 12_582_912.0;

/// A grid, and the grouping of a parameter's weights that share a scale.
///
/// Weights and scales are in the parameter's own order. Scales are `[rows, groups]`, `[groups, rows]` if
/// outputs come last, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaledGrid {
    /// The grid of the codes.
    pub grid: Grid,
    /// Which weights share a scale.
    pub grouping: Grouping,
    /// The row view of the parameter: outputs by inputs.
    pub rows: Rows,
}

impl ScaledGrid {
    /// Returns the elements of a line: neighbours that share one scale, or that have one scale each.
    fn line(&self) -> usize {
        match (self.grouping, self.rows.axis) {
            (Grouping::Tensor, _) => CHUNK,
            (_, OutputAxis::Last) => self.rows.n_rows,
            _ => self.group(),
        }
        .max(1)
    }

    /// Returns the inputs of an output that share a scale.
    fn group(&self) -> usize {
        let n_groups = self.grouping.per_row(self.rows.n_cols).unwrap_or(1).max(1);
        self.rows.n_cols / n_groups
    }

    /// Returns the range of scales of a line: one scale, or one per element.
    fn scales(&self, line: usize) -> std::ops::Range<usize> {
        match (self.grouping, self.rows.axis) {
            (Grouping::Tensor, _) => 0..1,
            (_, OutputAxis::Last) => {
                let first = line / self.group().max(1) * self.rows.n_rows;
                first..first + self.rows.n_rows
            }
            _ => line..line + 1,
        }
    }

    /// Returns the number of weights that share a scale.
    pub fn n_sharing(&self) -> usize {
        if self.grouping == Grouping::Tensor { self.rows.n_elements() } else { self.group() }
    }

    /// Returns the smallest and largest code relative to a zero point.
    fn bounds(&self, zero: f32) -> (f32, f32) {
        (f32::from(self.grid.min_code()) - zero, f32::from(self.grid.max_code()) - zero)
    }
}

/// Returns the scale for a stored number: its magnitude, or the smallest normal float for 0.
///
/// With this, a learned scale may cross 0 and stays positive.
pub fn scale_of(stored: f32) -> f32 {
    if stored == 0.0 { f32::MIN_POSITIVE } else { stored.abs() }
}

/// Computes `v = (clamp(round(w·m / scale) + zero) - zero) * scale` in the parameter's own order.
///
/// Equals [`briquette_core::fake_quantize`] bit for bit. A NaN weight stays NaN. `dropped` has a byte per
/// weight, 1 if it is dropped, or is empty. Without a grid, weights are not rounded.
///
/// # Panics
/// If the lengths disagree.
pub fn fake_quantize(weights: &[f32], dropped: &[u8], grid: Option<(&ScaledGrid, &[f32], &[f32])>) -> Vec<f32> {
    let n = weights.len();
    assert!(dropped.is_empty() || dropped.len() == n, "{} bytes for {n} weights", dropped.len());
    let Some((form, stored, zeros)) = grid else {
        return filled(n, CHUNK, |i, out| copy_kept(part(weights, i, CHUNK), part(dropped, i, CHUNK), out));
    };
    let scales: Vec<f32> = stored.iter().copied().map(scale_of).collect();
    let chunk = (CHUNK / form.line()).max(1) * form.line();
    filled(n, chunk, |i, out| {
        copy_kept(part(weights, i, chunk), part(dropped, i, chunk), out);
        let first = i * chunk / form.line();
        for (line, values) in out.chunks_mut(form.line()).enumerate() {
            let at = form.scales(first + line);
            round_line(form, values, &scales[at.clone()], zeros.get(at).unwrap_or_default());
        }
    })
}

/// Returns chunk `index` of a slice in chunks of `size`; empty for an empty slice.
fn part<T>(all: &[T], index: usize, size: usize) -> &[T] {
    let start = (index * size).min(all.len());
    &all[start..(start + size).min(all.len())]
}

/// Copies weights, with +0.0 for dropped weights.
fn copy_kept(weights: &[f32], dropped: &[u8], out: &mut [f32]) {
    if dropped.is_empty() {
        return out.copy_from_slice(weights);
    }
    for ((out, weight), &dropped) in out.iter_mut().zip(weights).zip(dropped) {
        *out = f32::from_bits(weight.to_bits() & u32::from(dropped).wrapping_sub(1));
    }
}

/// Rounds values with one scale, or with one scale each.
fn round_line(form: &ScaledGrid, values: &mut [f32], scales: &[f32], zeros: &[f32]) {
    match (scales, zeros) {
        (&[scale], zeros) => {
            let (low, high) = form.bounds(zeros.first().copied().unwrap_or(0.0));
            values.iter_mut().for_each(|value| *value = nearest(*value / scale, low, high) * scale);
        }
        (scales, []) => {
            let (low, high) = form.bounds(0.0);
            for (value, &scale) in values.iter_mut().zip(scales) {
                *value = nearest(*value / scale, low, high) * scale;
            }
        }
        (scales, zeros) => {
            for ((value, &scale), &zero) in values.iter_mut().zip(scales).zip(zeros) {
                let (low, high) = form.bounds(zero);
                *value = nearest(*value / scale, low, high) * scale;
            }
        }
    }
}

#[inline(always)]
fn nearest(steps: f32, low: f32, high: f32) -> f32 {
    (steps.clamp(low, high) + ROUND) - ROUND
}

/// Computes the straight-through gradient of kept weights in place: `dy · m`.
///
/// # Panics
/// If the lengths disagree.
pub fn keep_grads(dy: &mut [f32], dropped: &[u8]) {
    assert_eq!(dy.len(), dropped.len(), "a byte for each weight");
    dy.par_chunks_mut(CHUNK).zip(dropped.par_chunks(CHUNK)).for_each(|(dy, dropped)| {
        for (dy, &dropped) in dy.iter_mut().zip(dropped) {
            *dy = f32::from_bits(dy.to_bits() & u32::from(dropped).wrapping_sub(1));
        }
    });
}

/// Computes the gradients of weights and learned scales on a grid without zero points.
///
/// The gradient of weights replaces `dy`; the gradient of scales is returned. With `t = w·m / s` and codes from
/// `Qn` to `Qp`: `∂v/∂w = m` if `Qn < t < Qp`, else 0. `∂v/∂s = round(t) - t` in this range, else `Qn` or `Qp`,
/// times `1 / sqrt(n · Qp)` for the `n` weights that share a scale. Source: Esser et al., "Learned Step Size
/// Quantization", 2020, eq. 3 and section 2.2.
///
/// # Panics
/// If the lengths disagree.
pub fn learned_grads(form: &ScaledGrid, weights: &[f32], dropped: &[u8], stored: &[f32], dy: &mut [f32]) -> Vec<f32> {
    assert_eq!(weights.len(), dy.len(), "a gradient for each weight");
    let scales: Vec<f32> = stored.iter().copied().map(scale_of).collect();
    let chunk = (CHUNK / form.line()).max(1) * form.line();
    // Each chunk has its own sums, which are added in order, so the result does not depend on the number of
    // threads.
    let of_chunk = |(i, dy): (usize, &mut [f32])| {
        let (first, dropped) = (i * chunk / form.line(), part(dropped, i, chunk));
        let mut sums: Vec<(std::ops::Range<usize>, Vec<f32>)> = Vec::new();
        for (line, dy) in dy.chunks_mut(form.line()).enumerate() {
            let at = form.scales(first + line);
            if sums.last().is_none_or(|(last, _)| *last != at) {
                sums.push((at.clone(), vec![0.0; at.len()]));
            }
            let Some((_, sums)) = sums.last_mut() else { continue };
            let start = line * form.line();
            let weights = &part(weights, i, chunk)[start..start + dy.len()];
            let dropped = dropped.get(start..start + dy.len()).unwrap_or_default();
            learn_line(form, weights, dropped, &scales[at], dy, sums);
        }
        sums
    };
    let parts: Vec<_> = dy.par_chunks_mut(chunk).enumerate().map(of_chunk).collect();
    let mut grads = vec![0.0; stored.len()];
    for (at, sums) in parts.into_iter().flatten() {
        grads[at].iter_mut().zip(sums).for_each(|(grad, sum)| *grad += sum);
    }
    let factor = 1.0 / (form.n_sharing() as f32 * f32::from(form.grid.max_code())).sqrt();
    grads.iter_mut().zip(stored).for_each(|(grad, stored)| *grad *= factor.copysign(*stored));
    grads
}

/// Computes one line of [`learned_grads`].
fn learn_line(form: &ScaledGrid, weights: &[f32], dropped: &[u8], scales: &[f32], dy: &mut [f32], sums: &mut [f32]) {
    let (low, high) = form.bounds(0.0);
    for (i, (dy, weight)) in dy.iter_mut().zip(weights).enumerate() {
        if dropped.get(i).is_some_and(|&dropped| dropped != 0) {
            *dy = 0.0;
            continue;
        }
        let at = if scales.len() == 1 { 0 } else { i };
        let steps = weight / scales[at];
        let is_inside = low < steps && steps < high;
        let inside = if is_inside { steps } else { 0.0 };
        sums[at] += *dy * (nearest(steps, low, high) - inside);
        *dy = if is_inside { *dy } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::{Affine, Decision, GridKind, Mask, QuantParams};
    use proptest::prelude::*;

    /// Reorders rows into the parameter's own order, which is by columns if outputs come last.
    fn to_own<T: Copy>(by_row: &[T], n_cols: usize, axis: OutputAxis) -> Vec<T> {
        let n_rows = by_row.len() / n_cols;
        match axis {
            OutputAxis::Last => {
                (0..n_cols).flat_map(|col| (0..n_rows).map(move |row| by_row[row * n_cols + col])).collect()
            }
            _ => by_row.to_vec(),
        }
    }

    fn any_weight() -> impl Strategy<Value = f32> {
        prop_oneof![6 => -2.0_f32..2.0, 1 => Just(0.0), 1 => Just(-0.0), 1 => Just(0.25), 1 => Just(-1e30), 1 => Just(1e-42)]
    }

    proptest! {
        #[test]
        fn one_pass_equals_the_reference(
            (n_rows, n_cols) in (1_usize..20, prop::sample::select(vec![1_usize, 4, 12, 36])),
            values in prop::collection::vec(any_weight(), 20 * 36),
            scales in prop::collection::vec(prop_oneof![1e-3_f32..1.0, Just(1e-40)], 20 * 36),
            zeros in prop::collection::vec(-8_i8..8, 20 * 36),
            seed in any::<u64>(), n_bits in 4_u8..=8, kind in 0_usize..3, grouping in 0_usize..3, is_last: bool, is_masked: bool,
        ) {
            let kind = [GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric][kind];
            let grouping = [Grouping::Tensor, Grouping::Row, Grouping::Group(n_cols.min(4))][grouping];
            let axis = if is_last { OutputAxis::Last } else { OutputAxis::First };
            let form = ScaledGrid { grid: Grid::new(n_bits, kind).unwrap(), grouping, rows: Rows { axis, ..Rows::plain(n_rows, n_cols) } };
            let weights = &values[..n_rows * n_cols];
            let per_row = grouping.per_row(n_cols).unwrap().max(1);
            let n_scales = if grouping == Grouping::Tensor { 1 } else { n_rows * per_row };
            let zero = |i: usize| if kind == GridKind::Asymmetric { zeros[i] } else { 0 };
            let affines: Vec<Affine> = (0..n_scales).map(|i| Affine { scale: scales[i], zero: zero(i) }).collect();
            let keep = |row: usize, col: usize| !is_masked || (seed >> ((row * 7 + col) % 61)) & 1 == 0;
            let mask = Mask::from_fn(n_rows, n_cols, keep);
            let quant = QuantParams::new(form.grid, grouping, n_cols, affines.clone());
            let expected = briquette_core::fake_quantize(weights, n_rows, n_cols, &Decision { mask: Some(mask), quant: Some(quant) });

            let per_row = if n_scales == 1 { 1 } else { per_row };
            let own_scales = to_own(&affines.iter().map(|affine| affine.scale).collect::<Vec<_>>(), per_row, axis);
            let own_zeros = to_own(&affines.iter().map(|affine| f32::from(affine.zero)).collect::<Vec<_>>(), per_row, axis);
            let dropped: Vec<u8> = (0..weights.len()).map(|i| u8::from(!keep(i / n_cols, i % n_cols))).collect();
            let dropped = if is_masked { to_own(&dropped, n_cols, axis) } else { Vec::new() };
            let own_zeros = if kind == GridKind::Asymmetric { own_zeros } else { Vec::new() };
            let found = fake_quantize(&to_own(weights, n_cols, axis), &dropped, Some((&form, &own_scales, &own_zeros)));
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&found), bits(&to_own(&expected, n_cols, axis)));
        }
    }

    #[test]
    fn lines_longer_than_a_chunk_and_chunks_of_many_lines_have_their_own_scales() {
        for (n_rows, n_cols) in [(3, 2 * CHUNK + 5), (2 * CHUNK + 5, 3), (300, 700)] {
            for axis in [OutputAxis::First, OutputAxis::Last] {
                for grouping in [Grouping::Row, Grouping::Tensor] {
                    let form =
                        ScaledGrid { grid: Grid::INT8, grouping, rows: Rows { axis, ..Rows::plain(n_rows, n_cols) } };
                    let weights: Vec<f32> = (0..n_rows * n_cols).map(|i| (i % 1013) as f32 / 500.0 - 1.0).collect();
                    let n = if grouping == Grouping::Tensor { 1 } else { n_rows };
                    let scales: Vec<f32> = (0..n).map(|i| 0.004 + (i % 97) as f32 * 1e-4).collect();
                    let row = |i: usize| if axis == OutputAxis::Last { i % n_rows } else { i / n_cols };
                    let found = fake_quantize(&weights, &[], Some((&form, &scales, &[])));
                    for (i, value) in found.into_iter().enumerate() {
                        let affine = Affine::symmetric(scales[row(i) % n]);
                        let expected = affine.dequantize(affine.quantize(weights[i], Grid::INT8));
                        assert_eq!(value, expected, "{n_rows} x {n_cols} {axis:?} {grouping:?} {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn learned_scale_gradients_match_the_paper() {
        let (n_rows, n_cols) = (3, 40);
        let grid = Grid::new(3, GridKind::Symmetric).unwrap();
        let weights: Vec<f32> = (0..n_rows * n_cols).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let dropped: Vec<u8> = (0..weights.len()).map(|i| u8::from(i % 5 == 0)).collect();
        let dy: Vec<f32> = (0..weights.len()).map(|i| ((i * 13) % 7) as f32 - 3.0).collect();
        for axis in [OutputAxis::First, OutputAxis::Last] {
            let form = ScaledGrid { grid, grouping: Grouping::Row, rows: Rows { axis, ..Rows::plain(n_rows, n_cols) } };
            let scales = [0.2_f32, -0.1, 0.4];
            let row = |i: usize| if axis == OutputAxis::Last { i % n_rows } else { i / n_cols };
            let (mut expected, mut found) = ([0.0_f64; 3], dy.clone());
            let of_scales = learned_grads(&form, &weights, &dropped, &scales, &mut found);
            for i in (0..weights.len()).filter(|i| i % 5 != 0) {
                let steps = weights[i] / scales[row(i)].abs();
                let inside = steps.abs() < 3.0;
                let slope = if inside { steps.round_ties_even() - steps } else { 3.0 * steps.signum() };
                expected[row(i)] += f64::from(dy[i] * slope * scales[row(i)].signum());
                assert_eq!(found[i], if inside { dy[i] } else { 0.0 });
            }
            assert!((0..weights.len()).step_by(5).all(|i| found[i] == 0.0), "dropped weights have gradient 0");
            for (expected, found) in expected.into_iter().zip(of_scales) {
                let expected = expected / f64::from(n_cols as u32 * 3).sqrt();
                assert!((expected - f64::from(found)).abs() < 1e-4, "{expected} {found}");
            }
        }
    }
}
