//! The scale of each row by its error after GPTQ, for rows with few weights.

use crate::reconstruct::{InverseFactor, gptq};
use briquette_core::{Affine, Grouping, Mask, QuantParams, bits};

/// The most columns of a row whose scale is searched.
///
/// The sum of a row's codes is a whole number, so inputs of one sign leave an error of up to half a step, however the
/// weights are rounded. It matters in rows with few weights: of a depthwise convolution, or of a network's first layer.
const MAX_COLUMNS: usize = 64;
/// The scales tried for a row: its own, and up to 1.15 times as large. A smaller one would clip the largest weight.
const N_SCALES: usize = 31;
const WIDENING: f32 = 0.005;
/// The rows whose scales are searched together.
const ROWS: usize = 64;

/// Returns whether the scales of such rows are searched: one scale a row, codes symmetric around 0, few columns.
pub fn searches_scales(quant: &QuantParams, n_cols: usize) -> bool {
    let is_symmetric = quant.affines.iter().all(|affine| affine.zero == 0);
    quant.grouping == Grouping::Row && is_symmetric && n_cols <= MAX_COLUMNS
}

/// Rounds weights `[rows, n_cols]` by [`gptq`] with several scales for each row, and keeps the best.
///
/// The best scale has the least `e·(G + damping·mean(diag G)·I)·eᵀ`, with `e` the row's change and the Gram matrix `G`
/// of the inputs. Returns the scales.
///
/// # Errors
/// The first error of `check_stop`; the weights are then invalid.
///
/// # Panics
/// See [`gptq`]. If [`searches_scales`] is false.
pub fn gptq_with_scales<E: Send>(
    weights: &mut [f32],
    n_cols: usize,
    quant: &QuantParams,
    keep: Option<&Mask>,
    (factor, gram): (&InverseFactor, &[f64]),
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<QuantParams, E> {
    assert!(searches_scales(quant, n_cols), "symmetric rows of at most {MAX_COLUMNS} weights");
    let mut chosen = quant.clone();
    let damped = damped(gram, n_cols, factor.outcome().damping);
    for (chunk, weights) in weights.chunks_mut(ROWS * n_cols).enumerate() {
        let rows = chunk * ROWS..chunk * ROWS + weights.len() / n_cols;
        let tried: Vec<Affine> = rows.clone().flat_map(|row| scales_of(quant.row(row)[0])).collect();
        let each = |row: &[f32]| std::iter::repeat_n(row.to_vec(), N_SCALES).flatten().collect::<Vec<f32>>();
        let mut rounded: Vec<f32> = weights.chunks(n_cols).flat_map(each).collect();
        let kept = keep.map(|keep| repeated(keep, rows.clone(), n_cols));
        let grids = QuantParams::new(quant.grid, Grouping::Row, n_cols, tried.clone());
        gptq(&mut rounded, n_cols, &grids, kept.as_ref(), factor, check_stop)?;
        let of_rows = rounded.chunks(N_SCALES * n_cols).zip(tried.chunks(N_SCALES));
        for ((row, weights), (rounded, tried)) in rows.zip(weights.chunks_mut(n_cols)).zip(of_rows) {
            let error = |place: &usize| quadratic(weights, &rounded[place * n_cols..][..n_cols], &damped);
            let best = (0..N_SCALES).min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
            weights.copy_from_slice(&rounded[best * n_cols..][..n_cols]);
            chosen.affines[row] = tried[best];
        }
    }
    Ok(chosen)
}

fn scales_of(own: Affine) -> impl Iterator<Item = Affine> {
    (0..N_SCALES).map(move |place| Affine { scale: own.scale * (1.0 + WIDENING * place as f32), ..own })
}

/// Repeats the bits of each row for every scale.
fn repeated(keep: &Mask, rows: std::ops::Range<usize>, n_cols: usize) -> Mask {
    let row_bytes = Mask::row_bytes(n_cols);
    let own = |row: usize| &keep.as_bits()[row * row_bytes..(row + 1) * row_bytes];
    Mask::from_fn(rows.len() * N_SCALES, n_cols, |row, col| bits::get(own(rows.start + row / N_SCALES), col))
}

/// Returns `G + damping·mean(diag G)·I`.
fn damped(gram: &[f64], n: usize, damping: f64) -> Vec<f64> {
    let added = damping * (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n.max(1) as f64;
    let mut damped = gram.to_vec();
    (0..n).for_each(|i| damped[i * n + i] += added);
    damped
}

/// Returns `e·G·eᵀ` with `e = after − before`.
fn quadratic(before: &[f32], after: &[f32], gram: &[f64]) -> f64 {
    let error: Vec<f64> = after.iter().zip(before).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect();
    let of_row = |(own, row): (&f64, &[f64])| own * row.iter().zip(&error).map(|(a, b)| a * b).sum::<f64>();
    error.iter().zip(gram.chunks(error.len().max(1))).map(of_row).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconstruct::FactorSpec;
    use briquette_core::Grid;
    use std::convert::Infallible;

    const N: usize = 9;

    fn stop() -> Result<(), Infallible> {
        Ok(())
    }

    /// The Gram matrix of inputs around 1, and its factor.
    fn inputs() -> (Vec<f64>, InverseFactor) {
        let gram: Vec<f64> = (0..N * N).map(|at| if at / N == at % N { 110.0 } else { 100.0 }).collect();
        let Ok(factor) = InverseFactor::new(&gram, 100, &FactorSpec::default(), &stop);
        (gram, factor)
    }

    fn weights(n_rows: usize) -> Vec<f32> {
        (0..n_rows * N).map(|at| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn grids(weights: &[f32]) -> QuantParams {
        let largest = |row: &[f32]| row.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
        let affines = weights.chunks(N).map(|row| Affine::symmetric(largest(row) / 127.0)).collect();
        QuantParams::new(Grid::INT8, Grouping::Row, N, affines)
    }

    #[test]
    fn the_error_is_less_than_with_one_scale() {
        let (original, (gram, factor)) = (weights(130), inputs());
        let quant = grids(&original);
        let (mut plain, mut found) = (original.clone(), original.clone());
        let Ok(()) = gptq(&mut plain, N, &quant, None, &factor, &stop);
        let Ok(chosen) = gptq_with_scales(&mut found, N, &quant, None, (&factor, &gram), &stop);
        let error = |after: &[f32]| -> f64 {
            original.chunks(N).zip(after.chunks(N)).map(|(before, after)| quadratic(before, after, &gram)).sum()
        };
        assert!(error(&found) < 0.6 * error(&plain), "{} {}", error(&found), error(&plain));
        for (row, values) in found.chunks(N).enumerate() {
            let affine = chosen.row(row)[0];
            assert!(affine.scale >= quant.row(row)[0].scale && affine.scale <= 1.151 * quant.row(row)[0].scale);
            assert!(values.iter().all(|value| (value / affine.scale - (value / affine.scale).round()).abs() < 1e-3));
        }
    }

    #[test]
    fn dropped_weights_stay_zero_and_wide_rows_keep_their_scale() {
        let (mut found, (gram, factor)) = (weights(3), inputs());
        let quant = grids(&found);
        let keep = Mask::from_fn(3, N, |row, col| (row + col) % 2 == 0);
        let Ok(_) = gptq_with_scales(&mut found, N, &quant, Some(&keep), (&factor, &gram), &stop);
        assert!((0..3 * N).all(|at| keep.keeps(at / N, at % N) || found[at].to_bits() == 0));
        assert!(searches_scales(&quant, N) && !searches_scales(&quant, 65));
    }
}
