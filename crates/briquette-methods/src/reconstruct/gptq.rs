//! GPTQ: rounds one column after the other; later columns compensate for each error.

use crate::reconstruct::InverseFactor;
use crate::reconstruct::strip::{BLOCK, Lanes, RowStrip, STRIP, blocks};
use briquette_core::{Mask, QuantParams};
use rayon::prelude::*;

/// Rounds finite weights `[rows, n_cols]` to their grids and updates later columns to preserve the outputs.
///
/// For each row and, in the factor's order, each column `k`: `w_k ← round(w_k)`, then `w_l ← w_l − (w_k −
/// round(w_k))/U_kk · U_kl` for all later `l`. The grids are given and every result is on its grid: it equals
/// `affine.dequantize(code)` for some code, so rounding again changes nothing. Groups consist of stored columns
/// in any order ("static groups").
///
/// A weight that `keep` drops becomes exactly 0.0, and later columns compensate for its error too; weights that
/// were already 0 cause no error. If the factor [fell back](crate::reconstruct::FactorOutcome::fallback), weights
/// are rounded to nearest, as the weights of dead inputs always are. A weight that is updated beyond f32 becomes
/// NaN, and so do the later kept weights of its row.
///
/// Rows are independent of each other. Any thread calls `check_stop`, for every 64 rows and 128 columns.
///
/// Source: Frantar et al., "GPTQ", 2023, algorithm 1; order and static groups as in llm-compressor's
/// `quantize_weight`. That function sets the weights of dead inputs to 0, which breaks networks on data that
/// differ from the calibration data. Until 2026-06, it could preserve zeros by excluding them from all updates,
/// so that other columns relied on updates that never happened. Here zeros are processed in order, as in
/// SparseGPT's joint `fasterprune`.
///
/// # Errors
/// The first error of `check_stop`; the weights are then invalid.
///
/// # Panics
/// If the lengths disagree.
pub fn gptq<E: Send>(
    weights: &mut [f32],
    n_cols: usize,
    quant: &QuantParams,
    keep: Option<&Mask>,
    factor: &InverseFactor,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(), E> {
    assert_eq!(factor.n_cols(), n_cols, "the factor has n_cols columns");
    if n_cols == 0 {
        return Ok(());
    }
    assert!(weights.len().is_multiple_of(n_cols), "whole rows of weights");
    let n_rows = weights.len() / n_cols;
    assert!(keep.is_none_or(|keep| keep.dim() == (n_rows, n_cols)), "the mask has the shape of the weights");
    weights.par_chunks_mut(STRIP * n_cols).enumerate().try_for_each(|(chunk, weights)| {
        let first = chunk * STRIP;
        let mut strip = RowStrip::new(weights, factor);
        let rows = first..first + strip.n_rows();
        let grids = LaneGrid::of_groups(quant, rows.clone(), n_cols / quant.group_size());
        blocks(n_cols, BLOCK).try_for_each(|block| {
            check_stop()?;
            strip.sweep(block, |_, k, wanted| {
                let col = factor.order()[k];
                let mut rounded = grids[col / quant.group_size()].round(&wanted);
                if let Some(keep) = keep {
                    let dropped = rows.clone().zip(&mut rounded).filter(|(row, _)| !keep.keeps(*row, col));
                    dropped.for_each(|(_, value)| *value = 0.0);
                }
                rounded
            });
            Ok(())
        })
    })
}

/// The scale of a group and the bounds of its codes, for each row of a strip.
struct LaneGrid {
    scale: Lanes,
    low: Lanes,
    high: Lanes,
}

impl LaneGrid {
    /// Returns the grids of each group of some rows.
    fn of_groups(quant: &QuantParams, rows: std::ops::Range<usize>, n_groups: usize) -> Vec<Self> {
        let of_group = |group: usize| {
            let mut grid = Self { scale: [1.0; STRIP], low: [0.0; STRIP], high: [0.0; STRIP] };
            for (lane, row) in rows.clone().enumerate() {
                let affine = quant.row(row)[group];
                grid.scale[lane] = affine.scale;
                (grid.low[lane], grid.high[lane]) = affine.code_bounds(quant.grid);
            }
            grid
        };
        (0..n_groups).map(of_group).collect()
    }

    /// Returns `dequantize(quantize(value))` for each row; NaN for a value that is not finite.
    fn round(&self, values: &Lanes) -> Lanes {
        // Adding and subtracting 1.5·2²³ rounds values below 2²² to the nearest integer, halves to even, and
        // never yields -0.0.
        const ROUNDS: f32 = 12_582_912.0;
        std::array::from_fn(|lane| {
            let code = (values[lane] / self.scale[lane]).max(self.low[lane]).min(self.high[lane]);
            // The product is 0 for finite values and NaN for others, which clamping to the code bounds would
            // hide.
            ((code + ROUNDS) - ROUNDS) * self.scale[lane] + values[lane] * 0.0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconstruct::FactorSpec;
    use briquette_core::{Affine, Grid, GridKind, Grouping};
    use proptest::prelude::*;
    use std::convert::Infallible;

    #[test]
    fn an_update_beyond_f32_is_never_hidden_by_the_grid() {
        // The inputs require an update by the first weight's error times 5e29, which exceeds f32.
        let gram = [1e60, 1e30, 1e30, 1.01];
        let check_stop = || Ok::<(), Infallible>(());
        let spec = FactorSpec { damping: 0.0, ..FactorSpec::default() };
        let Ok(factor) = InverseFactor::new(&gram, 2, &spec, &check_stop);
        assert_eq!(factor.outcome().fallback, None);
        let scales = vec![Affine::symmetric(1e10), Affine::symmetric(1.0)];
        let quant = QuantParams::new(Grid::INT8, Grouping::Group(1), 2, scales);
        let mut weights = [4e9, 1.0];
        let Ok(()) = gptq(&mut weights, 2, &quant, None, &factor, &check_stop);
        assert_eq!(weights[0], 0.0);
        assert!(weights[1].is_nan(), "{weights:?}");
    }

    proptest! {
        #[test]
        fn lanes_round_like_affines(
            values in prop::collection::vec(prop_oneof![-3.0_f32..3.0, Just(0.05), Just(-0.05), Just(0.15), Just(3e38), Just(-0.0)], STRIP),
            scale in prop_oneof![1e-3_f32..1.0, Just(0.1), Just(1e-40), Just(3e37)], n_bits in 2_u8..=8, zero in -4_i8..4,
        ) {
            for kind in [GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric] {
                let grid = Grid::new(n_bits, kind).unwrap();
                let zero = if kind == GridKind::Asymmetric { zero.clamp(grid.min_code(), grid.max_code()) } else { 0 };
                let affine = Affine { scale, zero };
                let quant = QuantParams::new(grid, Grouping::Row, 1, vec![affine; STRIP]);
                let lanes = values.clone().try_into().unwrap();
                let rounded = LaneGrid::of_groups(&quant, 0..STRIP, 1)[0].round(&lanes);
                for (&value, found) in values.iter().zip(rounded) {
                    prop_assert_eq!(found.to_bits(), affine.dequantize(affine.quantize(value, grid)).to_bits(), "{}", value);
                }
            }
        }
    }
}
