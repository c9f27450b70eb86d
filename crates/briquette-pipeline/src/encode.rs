//! From weights to parts: masks, scales and codes, row by row, and the hash of what they stand for.

mod masker;
mod rows;
mod writes;

use crate::context::Workers;
use crate::layout::Placed;
use crate::piece::{Piece, Reader, check_cast, check_finite, sips_of};
use crate::plan::{Plan, TensorPlan};
use crate::survey::{PieceStart, Survey};
use briquette_core::block::RowEncoder;
use briquette_core::encoded::{Part, Parts};
use briquette_core::{Coding, ErrorStats, Grouping, Hash128, OutputAxis, Result, TensorHasher, rows::transpose_bytes};
use briquette_formats::TensorSource;
use briquette_prune::select::Selector;
use masker::Masker;
use rows::RowCoder;
use std::ops::Range;
use writes::Writes;

pub(crate) use masker::scored;
pub use writes::{Nowhere, Place, Sink};

/// What encoding a tensor showed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Hash of its simulated values.
    pub hash: Hash128,
    /// How far they are from the original.
    pub stats: ErrorStats,
}

/// Pieces of one tensor that one thread encodes in order.
struct Task<'a> {
    index: usize,
    tensor: &'a TensorPlan<'a>,
    survey: &'a Survey,
    coding: Coding,
    pieces: &'a [PieceStart],
    allow_nonfinite: bool,
}

impl Task<'_> {
    /// Bytes that it reads.
    fn n_bytes(&self) -> usize {
        let n_rows: usize = self.pieces.iter().map(|piece| piece.rows.len()).sum();
        n_rows * self.tensor.rows.n_cols * self.tensor.width()
    }

    /// Whether all of its weights have one scale, so that they must be seen whole.
    fn is_one_group(&self) -> bool {
        self.tensor.quant.is_some_and(|quant| quant.spec.grouping == Grouping::Tensor)
    }
}

/// Encodes every tensor of a plan into `sink`. Returns an outcome for each; a tied one has the other's.
///
/// # Errors
/// Those of reading and writing, and Refused for NaN or infinity.
pub fn encode(
    plan: &Plan,
    surveys: &[Survey],
    placed: &[Placed],
    source: &dyn TensorSource,
    sink: &dyn Sink,
    workers: &Workers,
) -> Result<Vec<Outcome>> {
    let mut tasks = Vec::new();
    for (index, tensor) in plan.tensors.iter().enumerate().filter(|(_, tensor)| tensor.tied_to.is_none()) {
        let (survey, coding) = (&surveys[index], placed[index].coding);
        let per_task = if RowEncoder::is_one_stream(coding) { survey.pieces.len().max(1) } else { 1 };
        let allow_nonfinite = plan.allow_nonfinite;
        let task = |pieces| Task { index, tensor, survey, coding, pieces, allow_nonfinite };
        tasks.extend(survey.pieces.chunks(per_task).map(task));
    }
    workers.begin("encode", tasks.iter().map(Task::n_bytes).sum());
    let shares = workers.map(&groups_of(&tasks), Workspace::default, |workspace, group| {
        let mut writes = Writes::new(sink);
        let run = |task| workspace.run(task, source, &mut writes, workers);
        let found = tasks[group.clone()].iter().map(run).collect::<Result<Vec<_>>>()?;
        writes.flush().map(|()| found)
    })?;
    let mut hashers: Vec<(TensorHasher, ErrorStats)> = plan.tensors.iter().map(|_| Default::default()).collect();
    for (task, (digests, stats)) in tasks.iter().zip(shares.into_iter().flatten()) {
        digests.into_iter().for_each(|digest| hashers[task.index].0.push(digest));
        hashers[task.index].1.merge(&stats);
    }
    let outcome = |tensor: &TensorPlan| {
        let (hasher, stats) = &hashers[tensor.tied_to.unwrap_or(tensor.index)];
        Outcome { hash: hasher.finish(), stats: *stats }
    };
    Ok(plan.tensors.iter().map(outcome).collect())
}

/// What small tensors of a group have in all.
const GROUP_BYTES: usize = 128 << 10;

/// Tasks that one thread does one after the other: small tensors, so that what they leave is written at once.
fn groups_of(tasks: &[Task]) -> Vec<Range<usize>> {
    let (mut groups, mut start, mut n_bytes) = (Vec::new(), 0, 0);
    for (index, task) in tasks.iter().enumerate() {
        let n = task.n_bytes();
        if index > start && n_bytes + n > GROUP_BYTES {
            groups.push(start..index);
            (start, n_bytes) = (index, 0);
        }
        n_bytes += n;
    }
    groups.push(start..tasks.len());
    groups
}

/// The buffers of one thread.
#[derive(Default)]
struct Workspace {
    reader: Reader,
    parts: Parts,
    coder: RowCoder,
    selector: Selector,
}

/// What a task found out so far.
#[derive(Default)]
struct Found {
    digests: Vec<Hash128>,
    stats: ErrorStats,
}

impl Workspace {
    fn run(
        &mut self,
        task: &Task,
        source: &dyn TensorSource,
        writes: &mut Writes,
        workers: &Workers,
    ) -> Result<(Vec<Hash128>, ErrorStats)> {
        let mut found = Found::default();
        let Some((first, last)) = task.pieces.first().zip(task.pieces.last()) else {
            return Ok((found.digests, found.stats));
        };
        let mut encoder = RowEncoder::new(task.coding, task.tensor.stored_dtype(), first.n_kept);
        let mut out = Output { tensor: task.index, next: offsets_before(task, first), parts: &mut self.parts, writes };
        out.parts.clear();
        for start in task.pieces {
            let mut masker = Masker::known(task, start);
            let is_sipped = masker.is_some() && !task.is_one_group();
            let reads_ranges = is_sipped && source.reads_ranges(task.tensor.index);
            for rows in sips_of(task.tensor, reads_ranges, &start.rows) {
                let mut piece = self.reader.read(source, task.tensor, &rows, workers.stop())?;
                let n_bytes = piece.bytes.len();
                if task.tensor.is_changed() {
                    self.coder.begin(task.tensor, task.coding, workers.stop());
                    let masker = match &mut masker {
                        Some(known) => known,
                        None => masker.insert(Masker::found(task, &mut piece, &mut self.selector, workers.stop())?),
                    };
                    encode_piece(task, &mut piece, masker, &mut self.coder, &mut encoder, &mut out, &mut found)?;
                } else {
                    copy_piece(task, &mut piece, &mut out, &mut found.digests)?;
                }
                workers.advance(n_bytes);
                workers.check_stop()?;
            }
            if start == last {
                encoder.finish(out.parts);
            }
            out.put(0)?;
        }
        Ok((found.digests, found.stats))
    }
}

/// Parts on their way out of a tensor. Long ones leave while they are still in the cache.
struct Output<'a, 'b> {
    tensor: usize,
    /// Where the next bytes of each part go.
    next: [u64; Part::ALL.len()],
    parts: &'a mut Parts,
    writes: &'a mut Writes<'b>,
}

impl Output<'_, '_> {
    /// What a part grows to before it is written.
    const FULL: usize = 256 << 10;

    /// Writes the parts that have at least `n_bytes`, and empties them.
    fn put(&mut self, n_bytes: usize) -> Result<()> {
        for part in Part::ALL {
            let bytes = &mut self.parts[part];
            if !bytes.is_empty() && bytes.len() >= n_bytes {
                self.writes.put(self.tensor, part, self.next[part as usize], bytes)?;
                self.next[part as usize] += bytes.len() as u64;
                bytes.clear();
            }
        }
        Ok(())
    }
}

/// The bytes that each part has before a piece.
fn offsets_before(task: &Task, start: &PieceStart) -> [u64; Part::ALL.len()] {
    let row_view = task.tensor.rows;
    let parts = task.coding.parts(task.tensor.value_dtype(), start.rows.start, row_view.n_cols, start.n_kept);
    let mut offsets = [0; Part::ALL.len()];
    for spec in parts {
        let is_shared = matches!(spec.part, Part::Scale | Part::Zero) && start.rows.start == 0;
        offsets[spec.part as usize] = if is_shared { 0 } else { spec.n_bytes() as u64 };
    }
    offsets
}

/// Masks and codes a piece, strip by strip.
fn encode_piece(
    task: &Task,
    piece: &mut Piece,
    masker: &mut Masker,
    coder: &mut RowCoder,
    encoder: &mut RowEncoder,
    out: &mut Output,
    found: &mut Found,
) -> Result<()> {
    let tensor = task.tensor;
    coder.give(std::mem::take(&mut piece.affines), piece.first_row);
    coder.fit_tensor(tensor, piece, *masker, encoder, out.parts)?;
    let is_turned = task.coding == Coding::DENSE && tensor.rows.axis == OutputAxis::Last;
    piece.for_each_strip(|strip, ends_block| {
        check_finite(tensor, strip)?;
        coder.strip(strip, masker, encoder, out.parts)?;
        check_cast(tensor, strip, coder.simulated())?;
        found.stats.push(strip.values, coder.simulated());
        if ends_block {
            let digest = coder.end_block();
            if !is_turned {
                found.digests.push(digest);
                out.put(Output::FULL)?;
            }
        }
        Ok(())
    })?;
    if is_turned {
        turn_back(tensor, out.parts, &mut found.digests);
    }
    Ok(())
}

/// A tensor that nothing is done to: its bytes, checked for NaN where it is a weight.
fn copy_piece(task: &Task, piece: &mut Piece, out: &mut Output, digests: &mut Vec<Hash128>) -> Result<()> {
    let tensor = task.tensor;
    let next = &mut out.next[Part::Weight as usize];
    out.writes.put(out.tensor, Part::Weight, *next, piece.bytes)?;
    *next += piece.bytes.len() as u64;
    if !tensor.info.dtype.is_weight() {
        digests.extend(piece.bytes.chunks(tensor.rows.rows_per_block()).map(Hash128::of_block));
        return Ok(());
    }
    piece.for_each_block(|block| {
        if !task.allow_nonfinite {
            check_finite(tensor, block)?;
        }
        digests.push(Hash128::of_block(block.bytes));
        Ok(())
    })
}

/// Puts whole dense rows back into a tensor's own order, `[in, out]`, and hashes them in that order.
fn turn_back(tensor: &TensorPlan, parts: &mut Parts, digests: &mut Vec<Hash128>) {
    let (rows, width) = (tensor.rows, tensor.stored_dtype().n_bits() / 8);
    let weight = &mut parts[Part::Weight];
    let mut own_order = vec![0; weight.len()];
    transpose_bytes(weight, &mut own_order, rows.n_cols, rows.n_rows, width);
    *weight = own_order;
    let stored = tensor.rows_as_stored();
    let blocks =
        stored.blocks().map(|rows| &weight[rows.start * stored.n_cols * width..rows.end * stored.n_cols * width]);
    digests.extend(blocks.map(Hash128::of_block));
}
