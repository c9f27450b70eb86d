//! Weight histograms of the worst tensors, before and after.

use super::evidence::Evidence;
use super::figures::WeightHistogram;
use super::first::first_by;
use briquette_core::{DType, ErrorStats, Result, rows};
use briquette_formats::TensorSource;
use briquette_writer::context::Workers;
use briquette_writer::{Plan, TensorPlan};

/// Number of histograms, of the tensors with the largest errors.
const N_TENSORS: usize = 6;
/// Number of bins of a histogram.
const N_BINS: usize = 61;
/// Number of elements to count, from the first rows: enough for the distribution.
const N_SAMPLE: usize = 1 << 17;

/// Returns the histograms of the worst tensors, from a sample of their first rows.
pub(super) fn of_worst(evidence: &Evidence, workers: &Workers) -> Result<Vec<WeightHistogram>> {
    let worst = worst_tensors(evidence.plan, evidence.stats);
    workers.map(&worst, || (), |(), index| histogram_of(evidence, &evidence.plan.tensors[*index]))
}

/// Returns the indices of the tensors with the lowest SQNR, for [`WriteJob::kept`](briquette_writer::WriteJob).
pub fn worst_tensors(plan: &Plan, stats: &[ErrorStats]) -> Vec<usize> {
    let sqnr = |index: usize| match plan.tensors[index].is_changed() {
        true => stats[index].figures().sqnr_db,
        false => None,
    };
    let shown = (0..stats.len()).filter(|&index| sqnr(index).is_some() && plan.tensors[index].tied_to().is_none());
    first_by(shown, N_TENSORS, |a, b| sqnr(a).unwrap_or(0.0).total_cmp(&sqnr(b).unwrap_or(0.0)))
}

fn histogram_of(evidence: &Evidence, tensor: &TensorPlan) -> Result<WeightHistogram> {
    let info = &tensor.info;
    let n = info.n_elements().min(N_SAMPLE);
    let before = values_of(evidence.checkpoint, tensor.index(), info.dtype, n)?;
    let written = evidence.written.tensors().iter().position(|found| found.name == info.name);
    let after = match written {
        Some(index) => values_of(evidence.written, index, evidence.written.tensors()[index].dtype, n)?,
        None => Vec::new(),
    };
    let limit = before.iter().fold(0.0_f32, |limit, value| limit.max(value.abs()));
    let limit = if limit > 0.0 { limit } else { 1.0 };
    Ok(WeightHistogram {
        name: info.name.to_string(),
        limit,
        before: count(&before, limit),
        after: count(&after, limit),
    })
}

fn values_of(source: &dyn TensorSource, index: usize, dtype: DType, n: usize) -> Result<Vec<f32>> {
    let mut bytes = vec![0; n * dtype.n_bits() / 8];
    source.read(index, 0, &mut bytes)?;
    let mut values = vec![0.0; n];
    rows::to_f32(&bytes, dtype, &mut values);
    Ok(values)
}

fn count(values: &[f32], limit: f32) -> Vec<u32> {
    let mut counts = vec![0; N_BINS];
    let bins = N_BINS as f32 / 2.0 / limit;
    for value in values {
        let place = (value + limit) * bins;
        counts[(place as usize).min(N_BINS - 1)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_in_the_middle_bin_and_the_ends_are_in_the_outer_bins() {
        let counts = count(&[0.0, -2.0, 2.0, 0.01], 2.0);
        assert_eq!((counts[N_BINS / 2], counts[0], counts[N_BINS - 1]), (2, 1, 1));
    }
}
