//! Rounding to the nearest codes on a trellis, many columns at a time.

use crate::reconstruct::trellis_path::{MOST, NEVER, SUBSETS};
use briquette_core::QuantParams;
use briquette_core::encoded::CodeBlocks;
use briquette_core::entropy::trellis::{N_STATES, can_have_trellis};
use rayon::prelude::*;

/// The number of columns that are processed together. It divides every row that can have a trellis.
const N_LANES: usize = 16;
/// Adding and subtracting 1.5·2²³ rounds a small number to the nearest integer.
const ROUND: f32 = 12_582_912.0;

type Lanes = [f32; N_LANES];

/// Rounds finite weights `[rows, n_cols]` to the nearest codes on a [trellis](briquette_core::entropy::trellis), times the
/// scale of their row.
///
/// Each column of a [block](CodeBlocks) gets the codes `n_i` with the least `Σ_i (w_i/Δ_i − n_i)²` (A. Viterbi, 1967). Weights
/// that are on the trellis stay as they are.
///
/// # Panics
/// If the lengths disagree, if rows of this length [cannot](can_have_trellis) have a trellis, or if a row has several scales.
pub fn nearest_on_trellis(weights: &mut [f32], n_cols: usize, quant: &QuantParams) {
    assert!(can_have_trellis(n_cols) && weights.len().is_multiple_of(n_cols), "whole rows of a multiple of 32 weights");
    assert_eq!(quant.group_size(), n_cols, "one scale for each row");
    let n_rows = weights.len() / n_cols;
    let scales: Vec<f32> = (0..n_rows).map(|row| quant.row(row)[0].scale).collect();
    let rows_per_block = CodeBlocks::new(n_rows, n_cols).rows(0).len().max(1);
    let blocks = weights.par_chunks_mut(rows_per_block * n_cols).zip(scales.par_chunks(rows_per_block));
    blocks.for_each_init(Vec::new, |from_upper, (weights, scales)| {
        for first in (0..n_cols).step_by(N_LANES) {
            round_columns(weights, n_cols, first, scales, from_upper);
        }
    });
}

/// Rounds the columns from `first` on of a block. `from_upper` is a buffer.
fn round_columns(
    weights: &mut [f32],
    n_cols: usize,
    first: usize,
    scales: &[f32],
    from_upper: &mut Vec<[u8; N_LANES]>,
) {
    from_upper.clear();
    let mut costs = [[NEVER; N_LANES]; N_STATES];
    costs[0] = [0.0; N_LANES];
    for (row, scale) in weights.chunks_exact(n_cols).zip(scales) {
        let mut values = [0.0; N_LANES];
        values.copy_from_slice(&row[first..first + N_LANES]);
        let values = values.map(|value| (value / scale).clamp(-MOST, MOST));
        let errors: [Lanes; 4] = std::array::from_fn(|subset| {
            values.map(|value| {
                let error = value - nearest_of_subset(value, subset as f32);
                error * error
            })
        });
        from_upper.push(step(&mut costs, &errors));
    }
    let mut states: [usize; N_LANES] = std::array::from_fn(|lane| {
        (0..N_STATES).min_by(|&a, &b| costs[a][lane].total_cmp(&costs[b][lane])).unwrap_or(0)
    });
    for ((row, scale), from_upper) in weights.chunks_exact_mut(n_cols).zip(scales).zip(from_upper).rev() {
        for ((value, state), upper) in row[first..].iter_mut().zip(&mut states).zip(from_upper) {
            let before = *state >> 1 | usize::from(*upper >> *state & 1) << 2;
            let in_steps = (*value / scale).clamp(-MOST, MOST);
            *value = nearest_of_subset(in_steps, SUBSETS[before][*state & 1] as f32) * scale;
            *state = before;
        }
    }
}

/// Returns the nearest code of a subset: those that are equal modulo 4.
#[inline(always)]
fn nearest_of_subset(value: f32, subset: f32) -> f32 {
    let code = (((value - subset) * 0.25 + ROUND) - ROUND) * 4.0 + subset;
    let code = if code > MOST { code - 4.0 } else { code };
    if code < -MOST { code + 4.0 } else { code }
}

/// Advances the least cost of each state by a row. Returns a bit for each state: whether the state before is 4 or above.
#[inline(always)]
fn step(costs: &mut [Lanes; N_STATES], errors: &[Lanes; 4]) -> [u8; N_LANES] {
    let mut from_upper = [0_u32; N_LANES];
    let mut after = [[0.0; N_LANES]; N_STATES];
    for (state, after) in after.iter_mut().enumerate() {
        let (lower, upper) = (state >> 1, state >> 1 | 4);
        let of_lower = (&costs[lower], &errors[SUBSETS[lower][state & 1]]);
        let of_upper = (&costs[upper], &errors[SUBSETS[upper][state & 1]]);
        for lane in 0..N_LANES {
            let [lower, upper] = [of_lower, of_upper].map(|(costs, errors)| costs[lane] + errors[lane]);
            after[lane] = if upper < lower { upper } else { lower };
            from_upper[lane] |= u32::from(upper < lower) << state;
        }
    }
    *costs = after;
    from_upper.map(|bits| bits as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconstruct::trellis_path::{BitCosts, TrellisPaths};
    use briquette_core::entropy::trellis::follows;
    use briquette_core::random::uniform;
    use briquette_core::{Affine, Grid, Grouping};

    const N_ROWS: usize = 6000;
    const N_COLS: usize = 64;

    #[test]
    fn the_nearest_codes_are_the_best_path_of_each_block_and_stay() {
        let scales: Vec<f32> = (0..N_ROWS).map(|row| if row % 5 == 0 { 0.5 } else { 0.25 }).collect();
        // Some weights are beyond the largest code.
        let size = |place: u64| if place.is_multiple_of(97) { 400.0 } else { 5.0 };
        let weight = |place: u64| size(place) * (uniform(3, 2 * place) + uniform(3, 2 * place + 1) - 1.0);
        let original: Vec<f32> = (0..(N_ROWS * N_COLS) as u64).map(weight).collect();
        let affines = scales.iter().map(|&scale| Affine::symmetric(scale)).collect();
        let quant = QuantParams::new(Grid::INT8, Grouping::Row, N_COLS, affines);
        let mut rounded = original.clone();
        nearest_on_trellis(&mut rounded, N_COLS, &quant);
        let rows_per_block = CodeBlocks::new(N_ROWS, N_COLS).rows(0).len();
        assert!(rows_per_block < N_ROWS);
        for ((original, rounded), scales) in original
            .chunks(rows_per_block * N_COLS)
            .zip(rounded.chunks(rows_per_block * N_COLS))
            .zip(scales.chunks(rows_per_block))
        {
            let in_steps = |weights: &[f32]| -> Vec<f32> {
                weights.iter().enumerate().map(|(place, weight)| weight / scales[place / N_COLS]).collect()
            };
            let (wanted, found) = (in_steps(original), in_steps(rounded));
            let codes: Vec<i8> = found.iter().map(|&code| code as i8).collect();
            assert!(codes.iter().zip(&found).all(|(&code, &found)| f32::from(code) == found));
            assert!(follows(&codes, N_COLS));
            let mut paths = TrellisPaths::new(scales.len());
            for col in 0..N_COLS {
                let of_col = || wanted.iter().skip(col).step_by(N_COLS).copied();
                assert!(paths.find(of_col(), |_| false, &BitCosts::rough(), 0.0));
                let error = |codes: &mut dyn Iterator<Item = i8>| -> f64 {
                    of_col()
                        .zip(codes)
                        .map(|(value, code)| f64::from(value.clamp(-MOST, MOST) - f32::from(code)).powi(2))
                        .sum()
                };
                let least = error(&mut paths.codes().iter().copied());
                let found = error(&mut codes.iter().skip(col).step_by(N_COLS).copied());
                assert!((found - least).abs() < 1e-4 * least, "column {col}: {found} {least}");
            }
        }
        let once = rounded.clone();
        nearest_on_trellis(&mut rounded, N_COLS, &quant);
        assert_eq!(once, rounded);
    }
}
