//! Predicts the memory of a run, and fits its threads and pieces to a limit.

use crate::curve;
use crate::decode::rows_per_task;
use crate::piece_sizes::PieceSizes;
use crate::plan::{Plan, TensorPlan};
use crate::treatment::Cut;
use briquette_core::encoded::CodeBlocks;
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Grouping, Result};
use briquette_formats::TensorSource;
use briquette_methods::prune::SparsityPattern;

/// The most memory of a run beside its workers: headers, the buffers of one checksum, and the report.
const OF_RUN: usize = 8 << 20;
/// The part of [`OF_RUN`] and [`OF_WORKER`] that does not depend on the size of what is read.
const LEAST: usize = 256 << 10;
/// Memory for each tensor beside the plan: its place in the files, its figures, and its entry in the manifest.
const OF_TENSOR: usize = 256;
/// The most memory of a worker beside its piece: histograms, and writes that are collected.
const OF_WORKER: usize = 3 << 20;
/// A part is written when it has this size.
const OF_PART: usize = 512 << 10;

impl Plan<'_> {
    /// Returns the number of threads with which survey, encoding and verification stay below a limit, at most
    /// `n_threads`. If memory is short, the plan gets smaller pieces.
    ///
    /// The needs are upper bounds. A thread needs the memory of its largest piece. Some tensors are one piece: see
    /// [`PieceSizes::pieces_of`].
    ///
    /// # Errors
    /// Refused: one thread needs more than the limit. The error names the tensor.
    pub fn fit(&mut self, source: &dyn TensorSource, limit: &MemoryLimit, n_threads: usize) -> Result<usize> {
        let fixed = self.fixed_bytes();
        let left = usize::try_from(limit.left()).unwrap_or(usize::MAX).saturating_sub(fixed);
        let large = self.threads_within(source, left, n_threads);
        if large == n_threads {
            return Ok(n_threads);
        }
        self.piece_sizes = PieceSizes::SMALL;
        let small = self.threads_within(source, left, n_threads);
        if small > large {
            return Ok(small);
        }
        if large > 0 {
            self.piece_sizes = PieceSizes::LARGE;
            return Ok(large);
        }
        let needs = self.tensors.iter().map(|tensor| (tensor, self.need_of(tensor, source).0));
        Err(too_little(needs, fixed, limit))
    }

    /// Returns the number of threads with which the curves of these tensors are measured below a limit, at most
    /// `n_threads`.
    ///
    /// # Errors
    /// See [`fit`](Self::fit).
    pub fn threads_of_curves(
        &self,
        tensors: &[&TensorPlan],
        source: &dyn TensorSource,
        limit: &MemoryLimit,
        n_threads: usize,
    ) -> Result<usize> {
        let fixed = self.fixed_bytes();
        let left = usize::try_from(limit.left()).unwrap_or(usize::MAX).saturating_sub(fixed);
        let needs = || tensors.iter().map(|&tensor| (tensor, curve::needed_bytes(tensor, source)));
        let most = needs().map(|(_, need)| need).max().unwrap_or(0);
        match left.checked_div(most).unwrap_or(n_threads).min(n_threads) {
            0 => Err(too_little(needs(), fixed, limit)),
            n => Ok(n),
        }
    }

    /// Returns an upper bound of the bytes that a run needs beside its workers.
    fn fixed_bytes(&self) -> usize {
        let of_weights: usize = self.tensors.iter().map(bytes_of).sum();
        OF_RUN.min(LEAST + 2 * of_weights) + OF_TENSOR * self.tensors.len()
    }

    /// Returns the most threads, up to `n_threads`, whose needs are within `left` bytes. Each has another piece.
    fn threads_within(&self, source: &dyn TensorSource, left: usize, n_threads: usize) -> usize {
        let mut largest: Vec<usize> = Vec::new();
        for tensor in &self.tensors {
            let (need, n_pieces) = self.need_of(tensor, source);
            if largest.len() < n_threads || largest.last().is_some_and(|&least| need > least) {
                largest.extend(std::iter::repeat_n(need, n_pieces.min(n_threads)));
                largest.sort_unstable_by(|a, b| b.cmp(a));
                largest.truncate(n_threads);
            }
        }
        let most = self.tensors.iter().map(of_worker).max().unwrap_or(0);
        largest.resize(n_threads, most);
        let sums = largest.iter().scan(0_usize, |sum, need| {
            *sum = sum.saturating_add(*need);
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= left).count()
    }

    /// Returns an upper bound of the bytes that a thread needs for a tensor, and the number of its pieces.
    fn need_of(&self, tensor: &TensorPlan, source: &dyn TensorSource) -> (usize, usize) {
        if tensor.tied_to().is_some() {
            return (of_worker(tensor), 0);
        }
        let reads_ranges = source.reads_ranges(tensor.index());
        let pieces = self.piece_sizes.pieces_of(tensor, reads_ranges);
        let Some(piece_rows) = pieces.first().map(ExactSizeIterator::len) else { return (of_worker(tensor), 0) };
        let rows = tensor.rows();
        let sizes = NeedSizes {
            piece: piece_rows * rows.n_cols,
            block: rows.rows_per_block().min(piece_rows) * rows.n_cols,
            is_cut: reads_ranges && !rows.axis.is_turned() && is_decided_by_strip(tensor, pieces.len()),
            has_inputs: self.inputs.contains_key(&tensor.index()),
            is_dense: tensor.codes(self.profile).is_none(),
        };
        let encode = sizes.read(tensor) + sizes.decide(tensor) + sizes.store(tensor);
        let survey = sizes.read(tensor) + 8 * sizes.block + self.key_bytes_of(tensor, sizes.piece, pieces.len());
        // Stored values, their mask, and one block of decoded values.
        let verify = (4 + 1) * rows_per_task(rows).min(rows.n_rows) * rows.n_cols + 4 * sizes.block;
        (of_worker(tensor) + encode.max(survey).max(verify), pieces.len())
    }

    /// Returns the bytes of the scores that a survey may collect from a piece while others do the same.
    fn key_bytes_of(&self, tensor: &TensorPlan, n_piece: usize, n_pieces: usize) -> usize {
        let is_searched = match tensor.prune.map(|prune| prune.cut) {
            Some(Cut::Pool(_)) => true,
            Some(Cut::Pattern(pattern)) => !pattern.is_by_row() && n_pieces > 1,
            Some(Cut::Given) | None => false,
        };
        // The list grows by doubling and is copied once; lists of finished pieces wait for the end of the pass.
        if is_searched { (3 * 4 * n_piece).min(3 * self.piece_sizes.key_bytes) + self.piece_sizes.key_bytes } else { 0 }
    }
}

/// Returns the bytes of a tensor's weights.
fn bytes_of(tensor: &TensorPlan) -> usize {
    tensor.rows().n_rows * tensor.rows().n_cols * tensor.width()
}

/// Returns an upper bound of the bytes that a worker needs beside the piece of a tensor.
fn of_worker(tensor: &TensorPlan) -> usize {
    OF_WORKER.min(LEAST + 4 * bytes_of(tensor))
}

/// Returns the error for a limit below the needs of one thread, and names the tensor that needs most.
fn too_little<'a, 'b: 'a>(
    needs: impl Iterator<Item = (&'a TensorPlan<'b>, usize)>,
    fixed: usize,
    limit: &MemoryLimit,
) -> Error {
    let (culprit, need) =
        needs.max_by_key(|(_, need)| *need).map_or(("the model".into(), 0), |(tensor, need)| (tensor.culprit(), need));
    let live = limit.n_bytes.saturating_sub(limit.left());
    let message = format!(
        "cannot compress {culprit}: found {live} bytes in use and {} more needed, expected at most {}; raise the limit",
        need + fixed,
        limit.n_bytes
    );
    Error::refused(message).at("memory.limit")
}

/// Returns whether rows are decided strip by strip after the survey; otherwise a whole piece is needed first.
fn is_decided_by_strip(tensor: &TensorPlan, n_pieces: usize) -> bool {
    let is_one_group = tensor.quant.is_some_and(|quant| quant.spec.grouping == Grouping::Tensor);
    let has_own_threshold = matches!(
        tensor.prune.map(|prune| prune.cut),
        Some(Cut::Pattern(SparsityPattern::Unstructured(_))) if n_pieces == 1
    );
    !is_one_group && !has_own_threshold
}

/// Numbers of elements that a thread has in memory.
struct NeedSizes {
    /// Elements of a piece.
    piece: usize,
    /// Elements of a block of the piece.
    block: usize,
    /// Whether a piece is read block by block.
    is_cut: bool,
    /// Whether input statistics are used.
    has_inputs: bool,
    /// Whether the output may have floats in the tensor's own order.
    is_dense: bool,
}

impl NeedSizes {
    /// Returns the bytes of weights that are read: in their own order, as rows, and updated.
    fn read(&self, tensor: &TensorPlan) -> usize {
        let n = if self.is_cut { self.block } else { self.piece };
        let n_copies = 1 + usize::from(tensor.rows().axis.is_turned());
        n * (tensor.width() * n_copies + if tensor.is_moved || tensor.solve.moves() { 4 } else { 0 })
    }

    /// Returns the bytes of decisions: values as f32, scores, kept values, and those of a whole piece.
    fn decide(&self, tensor: &TensorPlan) -> usize {
        if !tensor.is_changed() {
            return 4 * self.block;
        }
        let of_block = 3 * 4 * self.block;
        let is_one_group = tensor.quant.is_some_and(|quant| quant.spec.grouping == Grouping::Tensor);
        let has_parts = tensor.prune.is_some() || self.has_inputs;
        let of_scale = match (is_one_group, has_parts) {
            // All values, and if some are left out the others with their inputs, in lists that grow.
            (true, true) => (4 + 2 * (4 + 4) + 1) * self.piece,
            (true, false) => 4 * self.piece,
            (false, _) => 0,
        };
        let of_threshold = match tensor.prune.map(|prune| prune.cut) {
            Some(Cut::Pattern(SparsityPattern::Unstructured(_))) if !self.is_cut => 4 * self.piece,
            _ => 0,
        };
        of_block + of_scale + of_threshold
    }

    /// Returns the bytes of encoded parts before they are written.
    fn store(&self, tensor: &TensorPlan) -> usize {
        let width = tensor.stored_dtype().n_bits().div_ceil(8);
        let of_part = OF_PART.min(2 * bytes_of(tensor));
        if !tensor.is_changed() {
            return of_part;
        }
        let of_turned = if self.is_dense && tensor.rows().axis.is_turned() { 3 * width * self.piece } else { 0 };
        let of_codes = if tensor.blocks.is_some() { 4 * CodeBlocks::OF_ROW_BLOCKS * self.block } else { 0 };
        of_part + 2 * width * self.block + of_turned + of_codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Nonfinite;
    use briquette_core::memory::MemoryMeter;
    use briquette_core::{DType, OutputAxis};
    use briquette_formats::{InputFile, OutputFormat, TensorInfo};

    /// A meter that always reports this many bytes in use.
    struct Live(u64);

    impl MemoryMeter for Live {
        fn name(&self) -> &str {
            "fixed"
        }

        fn live_bytes(&self) -> Option<u64> {
            Some(self.0)
        }

        fn peak_bytes(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    /// Tensors without values, and whether they are read in ranges.
    struct Headers(Vec<TensorInfo>, bool);

    impl TensorSource for Headers {
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }

        fn read(&self, _index: usize, _start: usize, _out: &mut [u8]) -> Result<()> {
            Err(Error::bug("has no values"))
        }

        fn reads_ranges(&self, _index: usize) -> bool {
            self.1
        }

        fn files(&self) -> Vec<&InputFile> {
            Vec::new()
        }
    }

    const MB: u64 = 1_000_000;

    fn fit(plan: &mut Plan, source: &Headers, limit: u64) -> Result<usize> {
        plan.fit(source, &MemoryLimit::set(limit, &Live(2 * MB)), 4)
    }

    #[test]
    fn threads_and_pieces_shrink_with_the_limit_until_a_tensor_is_refused() {
        let info = |name: &str, shape| TensorInfo::checked(name.into(), DType::F32, shape).unwrap();
        // The second tensor is one piece unless memory is short.
        let source = Headers(vec![info("flat", vec![4096, 4096]), info("turned", vec![2048, 2048])], true);
        let planned = |axis| {
            let mut plan = Plan::unchanged(&source.0, OutputFormat::Briquette, Nonfinite::Refused);
            plan.tensors[1].output_rows = briquette_core::Rows::of(&source.0[1].shape, axis);
            plan.tensors[1].cast = Some(DType::F16);
            plan
        };
        let mut plan = planned(OutputAxis::First);
        assert_eq!((fit(&mut plan, &source, 1000 * MB).unwrap(), plan.piece_sizes), (4, PieceSizes::LARGE));
        assert_eq!(fit(&mut plan, &source, 24 * MB).unwrap(), 2);
        assert_eq!(fit(&mut plan, &source, 20 * MB).unwrap(), 1);
        let mut turned = planned(OutputAxis::Last);
        assert_eq!((fit(&mut turned, &source, 1000 * MB).unwrap(), turned.piece_sizes), (4, PieceSizes::LARGE));
        assert_eq!((fit(&mut turned, &source, 50 * MB).unwrap(), turned.piece_sizes), (4, PieceSizes::SMALL));
        // Two copies of 16.8 MB, and three of 8.4 MB of the cast weights, if the tensor cannot be read in ranges.
        let whole = Headers(source.0.clone(), false);
        let mut turned = planned(OutputAxis::Last);
        assert_eq!(fit(&mut turned, &whole, 90 * MB).unwrap(), 1);
        let error = fit(&mut turned, &whole, 50 * MB).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        for part in ["memory.limit: cannot compress tensor \"", "2000000 bytes in use", "expected at most 50000000"] {
            assert!(error.message.contains(part), "{error}");
        }
        assert_eq!(error.message.lines().count(), 1);
    }
}
