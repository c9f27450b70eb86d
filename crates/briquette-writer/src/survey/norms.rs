//! Measures the norms of directions that are pruned or quantized.

use super::scan::{PieceOf, Scan};
use crate::context::Workers;
use crate::piece::check_finite;
use crate::plan::Plan;
use crate::weight_norm::{MeasuredNorms, NormMeter};
use briquette_core::Result;
use briquette_formats::TensorSource;

/// Measures every weight norm of a plan. Tensors are read in order, so the sums do not depend on the threads.
///
/// # Errors
/// - Refused: a tensor has NaN or infinity.
/// - Interrupted: a stop was requested.
/// - Errors of [`TensorSource::read`].
pub(super) fn measure(plan: &mut Plan, source: &dyn TensorSource, workers: &Workers) -> Result<()> {
    let untied = |index: &&usize| plan.tensors[**index].tied_to().is_none();
    let directions: Vec<usize> = plan.norms.keys().filter(untied).copied().collect();
    let measured = workers.map(&directions, Scan::default, |scan, &index| of(plan, index, source, workers, scan))?;
    for (index, measured) in directions.iter().zip(measured) {
        if let Some(norm) = plan.norms.get_mut(index) {
            norm.measured = measured;
        }
    }
    Ok(())
}

/// Measures the norms of these directions, and reads their lengths if weights are pruned.
fn of(
    plan: &Plan,
    index: usize,
    source: &dyn TensorSource,
    workers: &Workers,
    scan: &mut Scan,
) -> Result<MeasuredNorms> {
    let (tensor, norm) = (&plan.tensors[index], &plan.norms[&index]);
    let (mut meter, mut lengths) = (NormMeter::new(norm.groups), Vec::new());
    values_of(plan, index, source, workers, scan, |first, values| meter.add(first, values))?;
    if tensor.prune.is_some() {
        values_of(plan, norm.lengths, source, workers, scan, |_, values| lengths.extend_from_slice(values))?;
    }
    Ok(meter.finish(lengths))
}

/// Calls `each` with all values of a tensor in order, and the position of the first.
fn values_of(
    plan: &Plan,
    index: usize,
    source: &dyn TensorSource,
    workers: &Workers,
    scan: &mut Scan,
    mut each: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let tensor = &plan.tensors[index];
    for rows in plan.piece_sizes.pieces_of(tensor, source.reads_ranges(index)) {
        scan.each(plan, source, &PieceOf { tensor: index, rows }, workers, |strip, _| {
            check_finite(tensor, &strip)?;
            each(strip.first_row * tensor.rows().n_cols, strip.values);
            Ok(())
        })?;
    }
    Ok(())
}
