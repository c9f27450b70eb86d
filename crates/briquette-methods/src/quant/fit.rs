//! Scales of the kept weights: the only module that computes a range for each group.

use crate::quant::range::WeightGroup;
use crate::quant::{QuantSpec, ScaleSearch, range};
use briquette_core::{Affine, Grouping, InputView, Mask, QuantParams, bits, simd};
use std::convert::Infallible;

/// Rows of weights whose scales are computed.
#[derive(Debug, Clone, Copy)]
pub struct MaskedRows<'a> {
    /// The weights, 0 where dropped.
    pub values: &'a [f32],
    /// The number of inputs of each row.
    pub n_cols: usize,
    /// One bit per weight, set if the weight is kept, [`Mask::row_bytes`] per row. `None` if all are kept.
    pub keep: Option<&'a [u8]>,
    /// Input statistics, for ranges that use them.
    pub inputs: Option<RowInputs<'a>>,
}

/// Input statistics of some rows of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct RowInputs<'a> {
    /// The statistics of each column, or of each column of each channel group.
    pub view: &'a InputView,
    /// The index of the first of the rows in the tensor.
    pub first_row: usize,
    /// The number of rows of the tensor.
    pub n_rows: usize,
}

impl RowInputs<'_> {
    /// Returns the mean square of the input of the weight at `at`, counted from the first row.
    fn mean_square(&self, at: usize, n_cols: usize) -> f32 {
        let start = self.view.start_of(self.first_row + at / n_cols, [self.n_rows, n_cols]);
        self.view.mean_square[start + at % n_cols]
    }
}

/// A computation of scales, with buffers that are reused between calls.
#[derive(Debug, Default)]
pub struct Fitter {
    values: Vec<f32>,
    mean_square: Vec<f32>,
}

impl Fitter {
    /// Appends the scale and zero point of every group of some rows to `affines`.
    ///
    /// If the tensor has a single scale, `rows` must be all of its rows. Dropped weights (zeros) do not change
    /// the ranges `absmax` and `minmax`. For the other ranges they are left out, because they would shift the
    /// result. `check_stop` is called about every half million weights.
    ///
    /// # Errors
    /// The first error of `check_stop`.
    ///
    /// # Panics
    /// If the group size does not divide the row.
    pub fn fit<E>(
        &mut self,
        spec: &QuantSpec,
        rows: MaskedRows,
        check_stop: &impl Fn() -> Result<(), E>,
        affines: &mut Vec<Affine>,
    ) -> Result<(), E> {
        let MaskedRows { values, n_cols, keep, inputs } = rows;
        let per_row = spec.grouping.per_row(n_cols).expect("the group size divides the row");
        let size = match spec.grouping {
            Grouping::Tensor => values.len(),
            Grouping::Row | Grouping::Group(_) => n_cols.checked_div(per_row).unwrap_or(0),
        };
        if let (ScaleSearch::Step(Some(size)), Grouping::Tensor) = (spec.range, spec.grouping) {
            // The scale is independent of the rows; weights beyond the grid are clamped.
            affines.push(spec.scale.round(Affine::symmetric(size)));
            return Ok(());
        }
        let keep = keep.filter(|_| !spec.range.sees_through_zeros());
        if size == 0 {
            let n = usize::from(spec.grouping == Grouping::Tensor);
            affines.extend(vec![spec.scale.round(range::choose(spec.range, &[], spec.grid)); n]);
            return Ok(());
        }
        for start in (0..values.len()).step_by(size) {
            let whole = WeightGroup { values: &values[start..start + size], mean_square: None };
            let group = if keep.is_some() || inputs.is_some() { self.group(&rows, keep, start, size) } else { whole };
            affines.push(spec.scale.round(range::try_choose(spec.range, group, spec.grid, check_stop)?));
        }
        Ok(())
    }

    /// Returns the kept weights among the `size` weights from `start` on, with their input statistics.
    fn group(&mut self, rows: &MaskedRows, keep: Option<&[u8]>, start: usize, size: usize) -> WeightGroup<'_> {
        let (n_cols, row_bytes) = (rows.n_cols, Mask::row_bytes(rows.n_cols));
        let is_kept = |&at: &usize| keep.is_none_or(|keep| bits::get(&keep[at / n_cols * row_bytes..], at % n_cols));
        let kept = (start..start + size).filter(is_kept);
        self.values.clear();
        self.values.extend(kept.clone().map(|at| rows.values[at]));
        let Some(inputs) = rows.inputs else { return WeightGroup { values: &self.values, mean_square: None } };
        self.mean_square.clear();
        self.mean_square.extend(kept.map(|at| inputs.mean_square(at, n_cols)));
        WeightGroup { values: &self.values, mean_square: Some(&self.mean_square) }
    }
}

/// Returns the scale and zero point of every group of `weights`, `[n_rows, n_cols]` row-major.
///
/// Only the weights that `mask` keeps are used.
///
/// # Panics
/// If the group size does not divide `n_cols`, or a weight is not finite.
pub fn fit(weights: &[f32], n_cols: usize, mask: Option<&Mask>, spec: &QuantSpec) -> QuantParams {
    let (mut kept, mut affines) = (Vec::new(), Vec::new());
    let values = match mask.filter(|_| n_cols > 0) {
        Some(mask) => {
            kept.resize(weights.len(), 0.0);
            for (row, (weights, kept)) in weights.chunks(n_cols).zip(kept.chunks_mut(n_cols)).enumerate() {
                simd::copy_kept(weights, mask.row(row), kept);
            }
            &kept
        }
        None => weights,
    };
    let rows = MaskedRows { values, n_cols, keep: mask.map(Mask::as_bits), inputs: None };
    let Ok(()) = Fitter::default().fit(spec, rows, &|| Ok::<(), Infallible>(()), &mut affines);
    QuantParams::new(spec.grid, spec.grouping, n_cols, affines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Scheme;

    #[test]
    fn robust_ranges_ignore_dropped_weights() {
        let weights: Vec<f32> = (0..60).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let mask = Mask::from_fn(5, 12, |row, col| (row + col) % 3 != 0);
        for name in ["int4", "int8-asym", "int4-g4", "int3-g12-asym"] {
            let mut spec = name.parse::<Scheme>().unwrap().weights;
            for grouping in [spec.grouping, Grouping::Tensor] {
                (spec.grouping, spec.range) = (grouping, ScaleSearch::Mse);
                let size = if grouping == Grouping::Tensor { 60 } else { 12 / grouping.per_row(12).unwrap() };
                let kept_of = |start: usize| -> Vec<f32> {
                    (start..start + size).filter(|i| mask.keeps(i / 12, i % 12)).map(|i| weights[i]).collect()
                };
                let expected: Vec<Affine> =
                    (0..60).step_by(size).map(|start| range::choose(spec.range, &kept_of(start), spec.grid)).collect();
                assert_eq!(fit(&weights, 12, Some(&mask), &spec).affines, expected, "{name} {grouping:?}");
            }
        }
    }

    #[test]
    fn ranges_weigh_errors_by_the_inputs_of_the_channel_group() {
        let mut spec = "int4".parse::<Scheme>().unwrap().weights;
        spec.range = ScaleSearch::Weighted;
        let weights: Vec<f32> = (0..48).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let view = InputView { rms: vec![0.0; 24], mean_square: (0..24).map(|i| (i * i % 7) as f32).collect() };
        let fitted = |values: &[f32], view: &InputView, [first_row, n_rows]: [usize; 2]| {
            let inputs = Some(RowInputs { view, first_row, n_rows });
            let (rows, mut affines) = (MaskedRows { values, n_cols: 12, keep: None, inputs }, Vec::new());
            let Ok(()) = Fitter::default().fit(&spec, rows, &|| Ok::<(), Infallible>(()), &mut affines);
            affines
        };
        // Two groups of two rows: each equals a tensor of its own.
        let of_group = |group: usize| {
            let range = group * 12..(group + 1) * 12;
            InputView { rms: view.rms[range.clone()].to_vec(), mean_square: view.mean_square[range].to_vec() }
        };
        let expected = [fitted(&weights[..24], &of_group(0), [0, 2]), fitted(&weights[24..], &of_group(1), [0, 2])];
        assert_eq!(fitted(&weights, &view, [0, 4]), expected.concat());
        assert_eq!(fitted(&weights[12..36], &view, [1, 4]), expected.concat()[1..3]);
        assert_ne!(fitted(&weights, &view, [0, 4]), fitted(&weights, &of_group(0), [0, 4]));
    }

    #[test]
    fn empty_rows_have_the_scale_of_an_empty_group() {
        let spec = "int8".parse::<Scheme>().unwrap().weights;
        assert_eq!(fit(&[], 0, None, &QuantSpec { grouping: Grouping::Tensor, ..spec }).affines.len(), 1);
        assert!(fit(&[], 0, None, &spec).affines.is_empty());
        assert!(fit(&[], 7, None, &spec).affines.is_empty());
    }
}
