//! Decides mask and scales of one parameter at a step.

use crate::Scope;
use crate::rules::{Amount, Prune};
use crate::scores::{RowScores, RowScratch};
use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, Grouping, Mask, Rows, simd};
use briquette_methods::prune::select;
use briquette_methods::prune::{Ratio, SparsityPattern, Threshold};
use briquette_methods::quant::{Fitter, MaskedRows, QuantSpec};
use rayon::prelude::*;
use std::convert::Infallible;

/// Number of weights whose scales a thread fits in one task.
const FITTED: usize = 1 << 15;

/// Returns the mask of a rule; `None` if no further weight is dropped.
///
/// `ratio` is the sparsity reached on the schedule. `threshold` is given if several parameters share one. `all`
/// is a buffer.
pub(crate) fn mask(
    rule: &Prune,
    ratio: Ratio,
    scores: &RowScores,
    threshold: Option<Threshold>,
    all: &mut Vec<f32>,
) -> Option<Mask> {
    let (n_rows, n_cols) = (scores.n_rows(), scores.n_cols);
    let new = match &rule.amount {
        Amount::Outside(mask) => mask.clone(),
        Amount::Zeros if !scores.values.contains(&0.0) => return None,
        Amount::Zeros => {
            by_row(n_rows, n_cols, |row, bits, _| drop_zeros(&scores.values[row * n_cols..(row + 1) * n_cols], bits))
        }
        &Amount::Pattern(SparsityPattern::NOfM { n, m }) => {
            by_row(n_rows, n_cols, |row, bits, scratch| select::n_of_m_row(scores.row(row, scratch), n, m, bits))
        }
        Amount::Pattern(_) => match (rule.scope(), threshold) {
            (Scope::Row, _) => {
                let n_drop = ratio.of(n_cols);
                by_row(n_rows, n_cols, |row, bits, scratch| {
                    select::smallest_of_each(scores.row(row, scratch), n_cols, n_drop, &mut Vec::new(), bits);
                })
            }
            (Scope::Columns(size), _) => select::smallest_of_columns(
                scores.all(all),
                n_rows,
                n_cols,
                size,
                ratio.of(n_rows.saturating_mul(size)),
            ),
            (_, Some(threshold)) => above(scores.all(all), n_rows, n_cols, threshold),
            (_, None) => select::smallest(scores.all(all), n_rows, n_cols, ratio.of(n_rows * n_cols)),
        },
    };
    // A dropped weight stays dropped, even if the schedule's sparsity falls.
    Some(match scores.kept {
        Some(old) => {
            let both = new.as_bits().iter().zip(old.as_bits()).map(|(new, old)| new & old).collect();
            Mask::from_bits(n_rows, n_cols, both)
        }
        None => new,
    })
}

/// Fills a mask row by row on all threads.
fn by_row(n_rows: usize, n_cols: usize, fill: impl Fn(usize, &mut [u8], &mut RowScratch) + Sync) -> Mask {
    let mut bits = vec![0; n_rows * Mask::row_bytes(n_cols)];
    if n_cols > 0 {
        let rows = bits.par_chunks_mut(Mask::row_bytes(n_cols)).enumerate();
        rows.for_each_init(RowScratch::default, |scratch, (row, bits)| fill(row, bits, scratch));
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

/// Sets the bit of each weight that is neither 0.0 nor -0.0.
fn drop_zeros(values: &[f32], bits: &mut [u8]) {
    for (bits, values) in bits.iter_mut().zip(values.chunks(8)) {
        *bits = values.iter().enumerate().fold(0, |bits, (i, value)| bits | u8::from(*value != 0.0) << i);
    }
}

/// Keeps scores above a threshold; ties are dropped in order.
fn above(scores: &[f32], n_rows: usize, n_cols: usize, mut threshold: Threshold) -> Mask {
    let mut bits = vec![0; n_rows * Mask::row_bytes(n_cols)];
    if n_cols > 0 {
        for (scores, bits) in scores.chunks(n_cols).zip(bits.chunks_mut(Mask::row_bytes(n_cols))) {
            simd::keep_above(scores, threshold.key, &mut threshold.n_ties, bits);
        }
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

/// Fits scale and zero point of every group of `values`, in which dropped weights are 0.
///
/// Range methods that treat dropped weights differently from zeros need the mask. If f16 cannot hold a scale,
/// all scales are f32, as in a file: see [`ScaleType::round`].
pub(crate) fn affines(spec: &QuantSpec, rows: &Rows, mask: Option<&Mask>, values: &[f32]) -> Vec<Affine> {
    let found = fitted(spec, rows, mask, values);
    match found.iter().all(|&affine| spec.scale.holds(affine)) {
        true => found,
        false => fitted(&QuantSpec { scale: ScaleType::F32, ..*spec }, rows, mask, values),
    }
}

fn fitted(spec: &QuantSpec, rows: &Rows, mask: Option<&Mask>, values: &[f32]) -> Vec<Affine> {
    let (n_cols, keep) = (rows.n_cols, mask.map(Mask::as_bits));
    let fit = |values: &[f32], keep: Option<&[u8]>| {
        let mut found = Vec::new();
        let rows = MaskedRows { values, n_cols, keep, inputs: None };
        let Ok(()) = Fitter::default().fit(spec, rows, &|| Ok::<(), Infallible>(()), &mut found);
        found
    };
    if spec.grouping == Grouping::Tensor || n_cols == 0 {
        return fit(values, keep);
    }
    let n_rows = (FITTED / n_cols).max(1);
    let of_chunk = |(i, values): (usize, &[f32])| {
        let width = Mask::row_bytes(n_cols);
        let rows = i * n_rows..i * n_rows + values.len() / n_cols;
        fit(values, keep.map(|keep| &keep[rows.start * width..rows.end * width]))
    };
    let parts: Vec<Vec<Affine>> = values.par_chunks(n_rows * n_cols).enumerate().map(of_chunk).collect();
    parts.concat()
}
