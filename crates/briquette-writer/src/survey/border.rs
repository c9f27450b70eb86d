//! Finds the exact threshold of tensors that do not fit in memory, mostly in a single pass.
//!
//! A sample brackets the threshold.

use super::scan::{Dropped, PieceOf, PiecesOf, Scan, pieces_in_order};
use crate::context::Workers;
use crate::piece::{PieceBuffer, check_finite};
use crate::plan::{Plan, TensorPlan};
use crate::scorer::Scorer;
use briquette_core::{DType, Error, Result, rows};
use briquette_formats::TensorSource;
use briquette_methods::prune::select::{Bracket, PoolThreshold, ScorePool, Tally, threshold_of_pool};
use briquette_methods::prune::{Histogram, Score, Threshold};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Neighbouring scores in one run of a sample.
const RUN: usize = 64;
/// The most runs in a sample.
const MAX_RUNS: usize = 4096;
/// One of this many scores is in the sample.
const SCORES_PER_SAMPLED: usize = 64;
/// The fewest runs that make a useful sample.
const MIN_RUNS: usize = 512;
/// Tensors with more columns are not sampled. If they are stored as codes, each run would decode a whole row.
const MAX_COLS: usize = 1 << 15;
/// The border between pruned and kept scores.
pub(super) struct Border {
    pub threshold: Threshold,
    /// For each piece of each tensor, in order: the number of pruned scores and of scores at the border.
    ///
    /// Empty if they are not counted yet.
    pub counts: Vec<Dropped>,
}

/// Tensors that share one border.
pub(super) struct Search<'a> {
    plan: &'a Plan<'a>,
    source: &'a dyn TensorSource,
    workers: &'a Workers,
    tensors: &'a [usize],
    parts: Vec<PieceOf>,
    /// Whether a pass has refused NaN and infinity in all scores.
    is_checked: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        plan: &'a Plan<'a>,
        source: &'a dyn TensorSource,
        workers: &'a Workers,
        pieces: PiecesOf,
        tensors: &'a [usize],
    ) -> Self {
        Self { plan, source, workers, tensors, parts: pieces_in_order(tensors, pieces), is_checked: false }
    }

    /// Finds the border of the `n_drop` smallest scores.
    ///
    /// See [`threshold_of_pool`]. The first pass over all scores refuses NaN and infinity. Other reads are checked
    /// during encoding.
    pub(super) fn border(mut self, n_drop: usize) -> Result<Border> {
        let PoolThreshold { threshold, tallies } = threshold_of_pool(&mut self, n_drop)?;
        let counts = tallies.iter().map(|tally| tally.split(threshold.key)).collect();
        Ok(Border { threshold, counts })
    }

    /// Passes the scores of a piece to a function.
    fn each(&self, scan: &mut Scan, part: &PieceOf, mut look: impl FnMut(&[f32])) -> Result<()> {
        scan.each(self.plan, self.source, part, self.workers, |strip, scores| {
            if !self.is_checked {
                check_finite(&self.plan.tensors[part.tensor], &strip)?;
            }
            look(scores);
            Ok(())
        })
    }

    /// Returns the keys of scores from all parts of the tensors, [`RUN`] neighbours at a time.
    fn sample(&self, n: usize, n_runs: usize) -> Result<Vec<u32>> {
        let (mut bytes, mut values, mut scratch) = (PieceBuffer::default(), vec![0.0; RUN], Vec::new());
        let mut keys = Vec::with_capacity(n_runs * RUN);
        let (mut run, mut first) = (0, 0);
        for tensor in self.tensors.iter().map(|&index| &self.plan.tensors[index]) {
            self.workers.check_stop()?;
            let n_elements = tensor.info.n_elements();
            while run < n_runs && place(run, n, n_runs) < first + n_elements {
                let start = (place(run, n, n_runs) - first).min(n_elements.saturating_sub(RUN));
                run += 1;
                if n_elements < RUN {
                    continue;
                }
                let bytes = bytes.bytes_mut(RUN * tensor.width());
                self.source.read(tensor.index(), start * tensor.width(), bytes)?;
                rows::to_f32(bytes, tensor.info.dtype, &mut values);
                let (inputs, norm) = (self.plan.inputs.get(&tensor.index()), self.plan.norms.get(&tensor.index()));
                let scores = Scorer::new(tensor, inputs, norm).of(&values, start, &mut scratch);
                keys.extend(scores.iter().map(|score| score.abs().to_bits()));
            }
            first += n_elements;
        }
        Ok(keys)
    }

    /// Returns whether the tallies of about `n_within` scores in a bracket fit in memory.
    fn fits_about(&self, bracket: Bracket, n_within: f64) -> bool {
        Tally::new(bracket, self.n_zero_bits()).is_bounded() || n_within * 4.0 <= self.plan.piece_sizes.key_bytes as f64
    }

    /// Returns the number of low bits that are 0 in every key.
    fn n_zero_bits(&self) -> u32 {
        let of = |tensor: &TensorPlan| match (tensor.score().unwrap_or_default(), tensor.info.dtype) {
            _ if self.plan.norms.contains_key(&tensor.index()) => 0,
            (Score::Magnitude, DType::BF16) => 16,
            (Score::Magnitude, DType::F16) => 13,
            _ => 0,
        };
        self.tensors.iter().map(|&index| of(&self.plan.tensors[index])).min().unwrap_or(0)
    }
}

impl ScorePool for Search<'_> {
    type Error = Error;

    fn guess(&mut self, n_drop: usize) -> Result<Option<Bracket>> {
        let n: usize = self.tensors.iter().map(|&index| self.plan.tensors[index].info.n_elements()).sum();
        let n_runs = (n / SCORES_PER_SAMPLED / RUN).min(MAX_RUNS);
        let is_cheap =
            |&index: &usize| self.source.reads_ranges(index) && self.plan.tensors[index].rows().n_cols <= MAX_COLS;
        if n_drop == 0 || n_runs < MIN_RUNS || !self.tensors.iter().all(is_cheap) {
            return Ok(None);
        }
        let sample = self.sample(n, n_runs)?;
        let bracket = Bracket::of_runs(&sample, RUN, n_drop as f64 / n as f64);
        let share =
            |bracket: Bracket| sample.iter().filter(|&&key| bracket.contains(key)).count() as f64 / sample.len() as f64;
        Ok(bracket.filter(|&bracket| self.fits_about(bracket, share(bracket) * n as f64)))
    }

    /// Histograms find the border if the keys inside the bracket need too much memory.
    fn tally(&mut self, bracket: Bracket) -> Result<Option<Vec<Tally>>> {
        let max_bytes = self.plan.piece_sizes.key_bytes;
        let (n_key_bytes, n_zero_bits) = (AtomicUsize::new(0), self.n_zero_bits());
        let tallies = self.workers.map(&self.parts, Scan::default, |scan, part| {
            let mut tally = Tally::new(bracket, n_zero_bits);
            if n_key_bytes.load(Ordering::Relaxed) > max_bytes {
                return Ok(tally);
            }
            self.each(scan, part, |scores| {
                if tally.n_bytes() <= max_bytes {
                    tally.count(scores);
                }
            })?;
            let tally = tally.shrunk();
            if !tally.is_bounded() {
                n_key_bytes.fetch_add(tally.n_bytes(), Ordering::Relaxed);
            }
            Ok(tally)
        })?;
        Ok((n_key_bytes.into_inner() <= max_bytes).then_some(tallies))
    }

    fn count(&mut self, empty: Histogram) -> Result<Histogram> {
        let shares = self.workers.fold(
            &self.parts,
            || (Scan::default(), empty.clone()),
            |(scan, histogram), part| self.each(scan, part, |scores| histogram.count(scores)),
        )?;
        // A pass of tallies may stop early, but this one reads everything.
        self.is_checked = true;
        let histograms = shares.into_iter().map(|(_, histogram)| histogram);
        Ok(histograms.reduce(Histogram::merge).unwrap_or(empty))
    }

    fn fits(&self, bracket: Bracket, n_within: usize) -> bool {
        self.fits_about(bracket, n_within as f64)
    }
}

/// Returns the start of a run of a sample: a scattered position in its share of `n` scores.
///
/// So runs are not aligned with rows.
fn place(run: usize, n: usize, n_runs: usize) -> usize {
    let step = n / n_runs;
    run * step + run.wrapping_mul(0x9e37_79b9) % step.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::RunOptions;
    use crate::known::{Known, Reason};
    use crate::piece::pieces_of;
    use crate::piece_sizes::PieceSizes;
    use crate::plan::Nonfinite;
    use crate::treatment::{Cut, Pruning, Treatment};
    use briquette_core::{OutputAxis, Role, Rows};
    use briquette_formats::{InputFile, OutputFormat, TensorInfo, WeightLayout};
    use briquette_methods::prune::{score, select};
    use std::collections::BTreeMap;
    use std::ops::Range;

    struct InMemory(Vec<TensorInfo>, Vec<Vec<u8>>);

    impl TensorSource for InMemory {
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }

        fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
            out.copy_from_slice(&self.1[index][start..start + out.len()]);
            Ok(())
        }

        fn reads_ranges(&self, _index: usize) -> bool {
            true
        }

        fn files(&self) -> Vec<&InputFile> {
            Vec::new()
        }
    }

    fn plan_of<'a>(infos: &'a [TensorInfo]) -> Plan<'a> {
        let tensor = |(index, info): (usize, &'a TensorInfo)| {
            let prune = Some(Pruning { score: Score::Magnitude, cut: Cut::Pool(0) });
            let rows = Rows::of(&info.shape, OutputAxis::First);
            let known = Known { role: Role::Linear, axis: OutputAxis::First, why: Reason::Matrix };
            TensorPlan::new(index, info, Treatment { prune, ..Treatment::none(known, rows) })
        };
        let tensors = infos.iter().enumerate().map(tensor).collect();
        let (profile, max_shard_bytes, layout) = (OutputFormat::Briquette, u64::MAX, WeightLayout::Torch);
        let (pools, metadata, inputs) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (nonfinite, untested, remarks) = (Nonfinite::Refused, None, Vec::new());
        let (outlier_pools, norms) = (Vec::new(), BTreeMap::new());
        Plan {
            piece_sizes: PieceSizes::LARGE,
            skeleton: None,
            tensors,
            pools,
            outlier_pools,
            norms,
            layout,
            metadata,
            profile,
            max_shard_bytes,
            nonfinite,
            untested,
            remarks,
            inputs,
        }
    }

    /// Compares the border of matrices with 1,000 columns with that of all their scores in a list.
    fn check(weights: &[Vec<f32>], dtype: DType, n_drop: usize, is_counted: bool) {
        let shape = |values: &Vec<f32>| vec![values.len() / 1000, 1000];
        let info = |(i, values)| TensorInfo::checked(format!("t{i}"), dtype, shape(values)).unwrap();
        let infos: Vec<TensorInfo> = weights.iter().enumerate().map(info).collect();
        let (mut stored, mut scores) = (Vec::new(), Vec::new());
        for values in weights {
            let (mut bytes, mut rounded) = (vec![0; values.len() * dtype.n_bits() / 8], vec![0.0; values.len()]);
            rows::from_f32(values, dtype, &mut bytes);
            rows::to_f32(&bytes, dtype, &mut rounded);
            stored.push(bytes);
            scores.push(rounded);
        }
        let source = InMemory(infos, stored);
        let plan = plan_of(&source.0);
        let pieces: Vec<Vec<Range<usize>>> = plan.tensors.iter().map(|tensor| pieces_of(tensor, true)).collect();
        let workers = Workers::new(&RunOptions { threads: 2, ..RunOptions::default() }).unwrap();
        let tensors: Vec<usize> = (0..weights.len()).collect();
        let border =
            Search::new(&plan, &source, &workers, &|index| pieces[index].clone(), &tensors).border(n_drop).unwrap();
        assert_eq!(border.threshold, select::threshold_of(&scores.concat(), n_drop), "{dtype} {n_drop}");
        let key = border.threshold.key;
        let of_piece = |values: &[f32]| briquette_core::simd::count_below(values, key);
        let counts: Vec<Dropped> = (0..weights.len())
            .flat_map(|i| pieces[i].iter().map(move |rows| (i, rows.clone())))
            .map(|(i, rows)| of_piece(&scores[i][rows.start * 1000..rows.end * 1000]))
            .collect();
        assert_eq!(border.counts, if is_counted { counts } else { Vec::new() }, "{dtype} {n_drop}");
    }

    fn random(seed: u64, n: usize, scale: f32) -> Vec<f32> {
        let mut values = vec![0.0; n];
        score::random(seed, 0, &mut values);
        values.iter().map(|value| scale * (value - 0.5)).collect()
    }

    #[test]
    fn a_sample_finds_the_border_and_the_counts_of_each_piece() {
        let weights = [random(1, 1_000_000, 1.0), random(2, 7_000_000, 3.0), random(3, 300_000, 0.1)];
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            check(&weights, dtype, 3_320_000, true);
        }
    }

    #[test]
    fn small_tensors_and_extreme_shares_have_the_same_border() {
        let weights = [random(1, 100_000, 1.0), random(2, 200_000, 3.0)];
        for n_drop in [1, 120_000, 300_000] {
            check(&weights, DType::F32, n_drop, true);
        }
        check(&weights, DType::F32, 0, false);
    }

    #[test]
    fn more_ties_than_fit_in_memory_have_the_same_border() {
        let weights = [random(1, 2_000_000, 1.0), vec![0.0; PieceSizes::LARGE.key_bytes / 4 + 5_696]];
        check(&weights, DType::F32, 3_000_000, false);
    }
}
