//! Determines properties of the weights that the layout depends on.
//!
//! These are thresholds over more weights than fit in memory, zeros in the source, and NaN if the plan accepts
//! it.

mod border;
mod norms;
mod piece_counts;
mod scan;
mod surveyed;

use crate::context::Workers;
use crate::decode::count_zeros;
use crate::piece::check_finite;
use crate::plan::{Nonfinite, Plan, TensorPlan};
use crate::treatment::{Cut, Treatment};
use border::Search;
use briquette_core::{Result, bits, rows, simd};
use briquette_formats::TensorSource;
use briquette_methods::prune::{SparsityPattern, Threshold};
use piece_counts::PieceCounts;
use scan::{Dropped, PieceOf, PiecesOf, Scan, pieces_in_order};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
pub use surveyed::{PieceStart, Pieces, Survey};

/// The reason shown for a tensor that stays unchanged because it has NaN or infinity.
pub const NONFINITE: &str = "has NaN or infinity";

/// Surveys every tensor. If the plan says so, tensors with NaN or infinity are left unchanged.
///
/// A tensor of which its pool drops no weight is not pruned: its zeros are counted instead.
///
/// # Errors
/// Refused: a tensor has NaN or infinity. Also errors of reading.
pub fn survey(plan: &mut Plan, source: &dyn TensorSource, workers: &Workers) -> Result<Vec<Survey>> {
    leave_nonfinite(plan, source, workers)?;
    norms::measure(plan, source, workers)?;
    let (mut thresholds, mut counts) = thresholds_of(plan, source, workers)?;
    count_pieces(plan, source, workers, 0..plan.tensors.len(), &thresholds, &mut counts)?;
    share_ties(plan, &counts, &mut thresholds);
    let complete = leave_complete(plan, &mut thresholds, &mut counts);
    if !complete.is_empty() {
        count_pieces(plan, source, workers, complete.into_iter(), &thresholds, &mut counts)?;
    }
    let pieces: PiecesOf = &|index| plan.piece_sizes.pieces_of(&plan.tensors[index], source.reads_ranges(index));
    let of = |(index, tensor)| one(tensor, thresholds.get(&index).copied(), &pieces(index), counts.of(index));
    Ok(plan.tensors.iter().enumerate().map(of).collect())
}

/// The thresholds of tensors that the survey finds.
type Thresholds = BTreeMap<usize, Threshold>;

/// Sums the counts of earlier pieces for each piece of a tensor.
fn one(tensor: &TensorPlan, threshold: Option<Threshold>, pieces: &[Range<usize>], counts: &[Dropped]) -> Survey {
    let (mut n_kept, mut n_ties) = (0, threshold.map_or(0, |threshold| threshold.n_ties));
    let mut starts = Vec::with_capacity(pieces.len());
    for (i, rows) in pieces.iter().enumerate() {
        starts.push(PieceStart { rows: rows.clone(), n_kept, n_ties });
        let n = rows.len() * tensor.rows().n_cols;
        let (below, equal) = counts.get(i).copied().unwrap_or_default();
        let dropped_ties = equal.min(n_ties);
        n_kept += match tensor.prune.map(|prune| prune.cut) {
            Some(Cut::Pattern(pattern)) if pattern.is_by_row() => {
                n - pattern.n_dropped(rows.len(), tensor.rows().n_cols)
            }
            _ => n - below - dropped_ties,
        };
        n_ties -= dropped_ties;
    }
    // A tensor in one piece gets its threshold during encoding. Its count is in the plan.
    if let (Some(Cut::Pattern(pattern)), None) = (tensor.prune.map(|prune| prune.cut), threshold) {
        n_kept = tensor.info.n_elements() - pattern.n_dropped(tensor.rows().n_rows, tensor.rows().n_cols);
    }
    Survey::new(n_kept, threshold, starts)
}

/// Finds the thresholds of pools, and of tensors that are too large to find theirs during encoding.
///
/// If the search yields them, it also returns the counts of each piece.
fn thresholds_of(plan: &Plan, source: &dyn TensorSource, workers: &Workers) -> Result<(Thresholds, PieceCounts)> {
    let pieces: PiecesOf = &|index| plan.piece_sizes.pieces_of(&plan.tensors[index], source.reads_ranges(index));
    let (mut thresholds, mut counts) = (Thresholds::new(), PieceCounts::default());
    let mut pools: Vec<(Vec<usize>, usize)> = Vec::new();
    for (index, tensor) in plan.tensors.iter().enumerate() {
        if let (Some(Cut::Pattern(SparsityPattern::Unstructured(n_drop))), None, true) =
            (tensor.prune.map(|prune| prune.cut), tensor.tied_to(), pieces(index).len() > 1)
        {
            pools.push((vec![index], n_drop));
        }
    }
    for pool in &plan.pools {
        let n: usize = pool.tensors.iter().map(|&index| plan.tensors[index].info.n_elements()).sum();
        pools.push((pool.tensors.clone(), pool.ratio.of(n).min(n - plan.n_norms(&pool.tensors))));
    }
    for (tensors, n_drop) in pools {
        let border = Search::new(plan, source, workers, pieces, &tensors).border(n_drop)?;
        let mut counted = border.counts.into_iter();
        for &index in &tensors {
            thresholds.insert(index, border.threshold);
            counts.put(index, counted.by_ref().take(pieces(index).len()));
        }
    }
    Ok((thresholds, counts))
}

/// Divides the ties of a pool (scores equal to its threshold) among its tensors. Earlier tensors prune theirs
/// first.
fn share_ties(plan: &Plan, counts: &PieceCounts, thresholds: &mut Thresholds) {
    for pool in &plan.pools {
        let Some(whole) = pool.tensors.first().and_then(|index| thresholds.get(index).copied()) else { continue };
        let equal = pool.tensors.iter().map(|&index| counts.of(index).iter().map(|(_, equal)| equal).sum());
        for (&index, share) in pool.tensors.iter().zip(whole.shares(equal)) {
            thresholds.insert(index, share);
        }
    }
}

/// Removes the pruning of tensors of which their pool drops no weight, and returns these tensors. Directions of a
/// weight norm stay as they are.
fn leave_complete(plan: &mut Plan, thresholds: &mut Thresholds, counts: &mut PieceCounts) -> Vec<usize> {
    let mut complete: Vec<usize> = plan.pools.iter().flat_map(|pool| pool.tensors.iter().copied()).collect();
    complete.retain(|index| {
        let drops_ties = thresholds.get(index).is_some_and(|threshold| threshold.n_ties > 0);
        !drops_ties && !plan.norms.contains_key(index) && counts.of(*index).iter().all(|(below, _)| *below == 0)
    });
    for &index in &complete {
        let tensor = &mut plan.tensors[index];
        tensor.treat(Arc::new(Treatment { prune: None, ..Treatment::clone(tensor.treatment()) }));
        thresholds.remove(&index);
        counts.put(index, std::iter::empty());
    }
    complete
}

/// Counts the pruned elements of each piece if they are not known yet.
///
/// These are scores below and at a known threshold, or zeros of a tensor that is not pruned but may be stored
/// as sparse.
fn count_pieces(
    plan: &Plan,
    source: &dyn TensorSource,
    workers: &Workers,
    among: impl Iterator<Item = usize>,
    thresholds: &Thresholds,
    counts: &mut PieceCounts,
) -> Result<()> {
    let pieces: PiecesOf = &|index| plan.piece_sizes.pieces_of(&plan.tensors[index], source.reads_ranges(index));
    let mut tensors = Vec::new();
    let stored = among.map(|index| (index, &plan.tensors[index]));
    for (index, tensor) in stored.filter(|(_, tensor)| tensor.tied_to().is_none()) {
        let may_be_sparse = tensor.prune.is_none() && tensor.is_recoded() && plan.profile.holds_sparse();
        if thresholds.contains_key(&index) && counts.of(index).is_empty()
            || tensor.prune.is_some_and(|prune| prune.cut == Cut::Given)
            || may_be_sparse && (tensor.was_sparse || has_zeros(tensor, source)?)
        {
            tensors.push(index);
        }
    }
    let parts = pieces_in_order(&tensors, pieces);
    let n_bytes =
        |part: &PieceOf| part.rows.len() * plan.tensors[part.tensor].rows().n_cols * plan.tensors[part.tensor].width();
    workers.begin("survey", parts.iter().map(n_bytes).sum());
    let mut counted = workers.map_small(&parts, n_bytes, Scan::default, |scan, part| {
        let mut count = (0, 0);
        let tensor = &plan.tensors[part.tensor];
        if tensor.prune.is_some_and(|prune| prune.cut == Cut::Given) {
            let keep = source.keep(part.tensor, part.rows.clone())?;
            return Ok((part.rows.len() * tensor.rows().n_cols - bits::count_ones(&keep), 0));
        }
        let mut bits = Vec::new();
        scan.each(plan, source, part, workers, |strip, scores| {
            match thresholds.get(&part.tensor) {
                Some(threshold) => {
                    let (below, equal) = simd::count_below(scores, threshold.key);
                    count = (count.0 + below, count.1 + equal);
                }
                None => {
                    let weights = strip.weights();
                    bits.resize(weights.len().div_ceil(8), 0);
                    count.0 += weights.len() - simd::nonzero_bits(weights, &mut bits);
                }
            }
            Ok(())
        })?;
        Ok(count)
    })?;
    for parts in parts.chunk_by(|a, b| a.tensor == b.tensor) {
        counts.put(parts[0].tensor, counted.by_ref().take(parts.len()));
    }
    Ok(())
}

/// Returns whether a sample of a tensor has more than 1 zero in 64, so that it is worth counting all zeros.
fn has_zeros(tensor: &TensorPlan, source: &dyn TensorSource) -> Result<bool> {
    const N_RUNS: usize = 16;
    const RUN: usize = 1024;
    let (n, width) = (tensor.info.n_elements(), tensor.width());
    if n <= N_RUNS * RUN || !source.reads_ranges(tensor.index()) {
        return Ok(true);
    }
    let (mut bytes, mut n_zeros) = (vec![0; RUN * width], 0);
    for run in 0..N_RUNS {
        source.read(tensor.index(), (n - RUN) / (N_RUNS - 1) * run * width, &mut bytes)?;
        n_zeros += count_zeros(&bytes, width);
    }
    Ok(n_zeros * 64 > N_RUNS * RUN)
}

/// Leaves tensors with NaN or infinity unchanged, and cancels casts that would overflow, if the plan says so.
///
/// # Errors
/// Errors of reading.
pub fn leave_nonfinite(plan: &mut Plan, source: &dyn TensorSource, workers: &Workers) -> Result<()> {
    if plan.nonfinite != Nonfinite::Left {
        return Ok(());
    }
    let changed: Vec<usize> = (0..plan.tensors.len()).filter(|&index| plan.tensors[index].is_changed()).collect();
    let found = workers.map(&changed, Scan::default, |scan, &index| {
        let (mut is_finite, mut fits) = (true, true);
        let cast = plan.tensors[index].cast;
        for rows in plan.piece_sizes.pieces_of(&plan.tensors[index], source.reads_ranges(index)) {
            let part = PieceOf { tensor: index, rows };
            scan.each(plan, source, &part, workers, |block, _| {
                is_finite &= check_finite(&plan.tensors[index], &block).is_ok();
                fits &= cast.is_none_or(|dtype| rows::fits(f32::from_bits(simd::max_magnitude(block.values)), dtype));
                Ok(())
            })?;
        }
        Ok((is_finite, fits))
    })?;
    for (&index, (is_finite, fits)) in changed.iter().zip(found) {
        let tensor = &mut plan.tensors[index];
        if !is_finite {
            tensor.leave(NONFINITE);
        } else if let Some(dtype) = tensor.cast.filter(|_| !fits) {
            tensor.cast = None;
            tensor.skipped = Some(format!("too large for {dtype}"));
        }
    }
    let is_left = |index: usize, plan: &Plan| plan.tensors[index].skipped.as_deref() == Some(NONFINITE);
    for (directions, lengths) in plan.norms.iter().map(|(&index, norm)| (index, norm.lengths)).collect::<Vec<_>>() {
        // Directions and lengths change together or not at all.
        if is_left(directions, plan) || is_left(lengths, plan) {
            plan.tensors[directions].leave(NONFINITE);
            plan.forget_norm(directions, NONFINITE);
        }
    }
    let left: BTreeSet<usize> = (0..plan.tensors.len()).filter(|&index| is_left(index, plan)).collect();
    plan.pools.iter_mut().for_each(|pool| pool.tensors.retain(|index| !left.contains(index)));
    Ok(())
}
