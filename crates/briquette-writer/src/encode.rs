//! Encodes weights into parts: decides on masks and scales of rows, encodes them, and hashes the decoded
//! values.

mod blocks;
mod decide;
mod gather;
mod lengths;
mod outcomes;
mod output_error;
mod tasks;
mod turned;
mod writes;

use crate::context::{Stop, Workers, groups_of};
use crate::layout::PlacedTensors;
use crate::narrow::check_stored;
use crate::piece::{Piece, PieceBuffer, PieceReader, check_finite, sips_of};
use crate::plan::{Nonfinite, Plan, TensorPlan};
use crate::survey::{PieceStart, Pieces, Survey};
use blocks::BlocksOut;
use briquette_core::block::RowEncoder;
use briquette_core::coder::{RowCoder, RowForm, WeightRows};
use briquette_core::encoded::{Part, Parts};
use briquette_core::{Coding, Decision, Grouping, Hash128, Mask, QuantParams, Result, Rows};
use briquette_formats::TensorSource;
use decide::{Decider, PieceRules, Subject};
use gather::GatheredOutcomes;
use lengths::with_lengths;
use outcomes::TaskOutcome;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tasks::{TaskLists, TaskPieces};
use turned::CutTensor;
use writes::{PartOffsets, SpareBuffers, Writes};

pub use outcomes::Outcomes;
pub use output_error::OutputError;
pub use writes::{FilePlace, Nowhere, Sink};

/// Pieces of one tensor that one thread encodes in order.
struct EncodeTask<'a> {
    index: usize,
    subject: Subject<'a>,
    pieces: Pieces<'a>,
    passes_nonfinite: bool,
}

impl EncodeTask<'_> {
    /// Returns the number of bytes that the task reads.
    fn n_bytes(&self) -> usize {
        let (tensor, n_rows) = (self.subject.tensor, self.pieces.iter().map(|piece| piece.rows.len()).sum::<usize>());
        n_rows * tensor.rows().n_cols * tensor.width()
    }

    fn form(&self) -> RowForm {
        let Subject { tensor, coding, .. } = self.subject;
        RowForm {
            coding,
            dtype: tensor.stored_dtype(),
            // Updated weights differ from the bytes of the source.
            is_cast: tensor.cast.is_some() || tensor.is_moved,
            quant: tensor.quant.map(|quant| (quant.spec.grid, quant.spec.grouping)),
            n_cols: tensor.rows().n_cols,
        }
    }
}

/// Encodes every tensor of a plan into `sink`.
///
/// # Errors
/// Refused: a tensor has NaN or infinity. Also errors of reading and writing.
pub fn encode(
    plan: &Plan,
    surveys: &[Survey],
    placed: &PlacedTensors,
    source: &dyn TensorSource,
    sink: &dyn Sink,
    workers: &Workers,
) -> Result<Outcomes> {
    let passes_nonfinite = plan.nonfinite != Nonfinite::Refused;
    let task_of = |of: &TaskPieces| {
        let index = of.tensor as usize;
        let (tensor, survey, coding) = (&plan.tensors[index], &surveys[index], placed.of(index).coding);
        let (inputs, norm) = (plan.inputs.get(&index), plan.norms.get(&index));
        let subject = Subject { tensor, inputs, norm, survey, coding };
        let pieces = survey.pieces(tensor).range(of.pieces.start as usize..of.pieces.end as usize);
        EncodeTask { index, subject, pieces, passes_nonfinite }
    };
    let TaskLists { first, lengths } = TaskLists::of(plan, surveys, placed);
    workers.begin("encode", first.iter().chain(&lengths).map(|of| task_of(of).n_bytes()).sum());
    let gathered = Mutex::new(GatheredOutcomes::new(plan));
    run_tasks(&first, task_of, (source, sink), &gathered, workers)?;
    let sums = gathered.lock().unwrap_or_else(PoisonError::into_inner).take_norms();
    let rescaled = with_lengths(plan, source, sums.into_iter())?;
    run_tasks(&lengths, task_of, (&rescaled, sink), &gathered, workers)?;
    let mut gathered = gathered.into_inner().unwrap_or_else(PoisonError::into_inner);
    hash_cut_tensors((plan, surveys), placed, &mut gathered, sink, workers)?;
    Ok(gathered.finish())
}

/// Hashes the tensors that were written in pieces of outputs but are hashed in their own order.
fn hash_cut_tensors(
    (plan, surveys): (&Plan, &[Survey]),
    placed: &PlacedTensors,
    gathered: &mut GatheredOutcomes,
    sink: &dyn Sink,
    workers: &Workers,
) -> Result<()> {
    let digests = gathered.take_digests(|index| is_turned(&plan.tensors[index], placed.of(index).coding));
    let pieces: Vec<Pieces> = digests.keys().map(|&index| surveys[index].pieces(&plan.tensors[index])).collect();
    let cut: Vec<CutTensor> = (digests.into_iter().zip(&pieces))
        .map(|((index, digests), pieces)| CutTensor { index, tensor: &plan.tensors[index], pieces, digests })
        .collect();
    gathered.put_hashes(turned::hashes(&cut, sink, workers)?);
    Ok(())
}

/// Returns whether a tensor is stored in its own order, which is not that of its rows.
fn is_turned(tensor: &TensorPlan, coding: Coding) -> bool {
    coding == Coding::DENSE && tensor.rows().axis.is_turned()
}

/// Runs tasks, several small ones after another on one thread.
fn run_tasks<'a>(
    tasks: &[TaskPieces],
    task_of: impl Fn(&TaskPieces) -> EncodeTask<'a> + Sync,
    (source, sink): (&dyn TensorSource, &dyn Sink),
    gathered: &Mutex<GatheredOutcomes>,
    workers: &Workers,
) -> Result<()> {
    let groups = groups_of(tasks, |of| task_of(of).n_bytes());
    let run = |workspace: &mut Workspace, group: &Range<usize>| {
        let mut writes = Writes::new(sink, std::mem::take(&mut workspace.spare));
        let run = |of: &TaskPieces| {
            let task = task_of(of);
            let is_whole = task.pieces.len() == task.subject.survey.n_pieces();
            Ok((task.index, is_whole, workspace.run(&task, source, &mut writes, workers)?))
        };
        let found = tasks[group.clone()].iter().map(run).collect::<Result<Vec<_>>>()?;
        workspace.spare = writes.finish()?;
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        for (task, (tensor, is_whole, found)) in group.clone().zip(found) {
            gathered.put(tensor, (!is_whole).then_some(task), found);
        }
        Ok(())
    };
    workers.fold(&groups, Workspace::default, run).map(drop)
}

/// Returns the decision about one tensor of a plan. It determines the bytes that [`encode`] writes.
///
/// # Errors
/// See [`encode`].
pub fn decide(plan: &Plan, index: usize, survey: &Survey, source: &dyn TensorSource, stop: &Stop) -> Result<Decision> {
    let tensor = &plan.tensors[index];
    let coding = tensor.coding(plan.profile, survey.n_kept);
    let (inputs, norm) = (plan.inputs.get(&index), plan.norms.get(&index));
    let subject = Subject { tensor, inputs, norm, survey, coding };
    let (mut reader, mut decider) = (PieceReader::default(), Decider::default());
    let Rows { n_rows, n_cols, .. } = tensor.rows();
    let n_groups = tensor.quant.and_then(|quant| match quant.spec.grouping {
        Grouping::Tensor => Some(1),
        grouping => grouping.per_row(n_cols).map(|per_row| n_rows * per_row),
    });
    let mut affines = Vec::with_capacity(n_groups.unwrap_or(0));
    let mut columns = None;
    let mut keep = Vec::with_capacity(tensor.prune.map_or(0, |_| n_rows * Mask::row_bytes(n_cols)));
    for start in survey.pieces(tensor).iter() {
        let mut piece = reader.read(source, tensor, &start.rows, stop)?;
        let mut rules = decider.rules(None, &subject, start, &mut piece, stop)?;
        piece.for_each_strip(|strip, _| {
            check_finite(tensor, &strip)?;
            let (_, decision) = decider.strip(&subject, &mut rules, &strip, stop)?;
            keep.extend_from_slice(&decision.keep);
            affines.extend_from_slice(&decision.affines);
            columns.clone_from(&decision.columns);
            Ok(())
        })?;
    }
    let mask = tensor.prune.map(|_| Mask::from_bits(n_rows, n_cols, keep));
    let quant = tensor.quant.map(|quant| {
        if quant.spec.grouping == Grouping::Tensor {
            affines.truncate(1);
        }
        QuantParams::new(quant.spec.grid, quant.spec.grouping, n_cols, affines).with_columns(columns)
    });
    Ok(Decision { mask, quant })
}

/// The buffers of one thread.
#[derive(Default)]
struct Workspace {
    reader: PieceReader,
    parts: Parts,
    strips: StripCoder,
    spare: SpareBuffers,
}

/// Decides on strips of rows and encodes them into parts.
#[derive(Default)]
struct StripCoder {
    decider: Decider,
    coder: RowCoder,
}

impl Workspace {
    fn run(
        &mut self,
        task: &EncodeTask,
        source: &dyn TensorSource,
        writes: &mut Writes,
        workers: &Workers,
    ) -> Result<TaskOutcome> {
        let Some((first, last)) = task.pieces.first().zip(task.pieces.last()) else {
            return Ok(TaskOutcome::default());
        };
        let (tensor, stop) = (task.subject.tensor, workers.stop());
        let encoder = task.form().encoder(first.n_kept, std::mem::take(&mut self.parts));
        let next = offsets_before(task, first);
        let blocks = BlocksOut::of(task.subject.coding, tensor.rows(), &first.rows);
        let mut out = PartsOut { tensor: task.index, next, encoder, writes, blocks, found: TaskOutcome::default() };
        for start in task.pieces.iter() {
            let mut rules = None;
            let reads_ranges = task.subject.is_decided_by_strip() && source.reads_ranges(tensor.index());
            for rows in sips_of(tensor, reads_ranges, &start.rows) {
                let mut piece = self.reader.read(source, tensor, &rows, stop)?;
                let n_bytes = piece.bytes.len();
                if tensor.is_changed() {
                    let known = self.strips.decider.rules(rules.take(), &task.subject, start, &mut piece, stop)?;
                    let rules = rules.insert(known);
                    self.strips.encode(task, &mut piece, rules, &mut out, stop)?;
                } else {
                    copy_piece(task, &mut piece, &mut out)?;
                }
                workers.advance(n_bytes);
                workers.check_stop()?;
            }
            if start == last {
                out.encoder.finish();
            }
            if tensor.is_changed() && is_turned(tensor, task.subject.coding) {
                out.put_turned(tensor, &start.rows, self.reader.spare())?;
            }
            out.put(0)?;
        }
        self.parts = out.encoder.into_parts();
        Ok(out.found)
    }
}

impl StripCoder {
    /// Decides on a piece and encodes it, strip by strip.
    fn encode(
        &mut self,
        task: &EncodeTask,
        piece: &mut Piece,
        rules: &mut PieceRules,
        out: &mut PartsOut,
        stop: &Stop,
    ) -> Result<()> {
        let (tensor, form) = (task.subject.tensor, task.form());
        let is_turned = is_turned(tensor, form.coding);
        piece.for_each_strip(|strip, ends_block| {
            check_finite(tensor, &strip)?;
            let (kept, decision) = self.decider.strip(&task.subject, rules, &strip, stop)?;
            let rows = strip.first_row..strip.first_row + strip.values.len() / form.n_cols;
            let strip_rows = WeightRows { rows, bytes: strip.bytes, kept };
            let fake_quantized = self.coder.push(&form, &strip_rows, decision, &mut out.encoder);
            check_stored(tensor, &strip, fake_quantized)?;
            out.found.narrowness.push(tensor, &strip, kept, &decision.affines);
            out.found.stats.push(strip.values, fake_quantized);
            if let Some(inputs) = task.subject.inputs {
                let dims = [tensor.rows().n_rows, form.n_cols];
                out.found.outputs.push(strip.first_row, [strip.values, fake_quantized], inputs, dims);
            }
            if let Some(norm) = task.subject.norm {
                let sums = out.found.norm.get_or_insert_default();
                sums.push(norm.groups, strip.first_row * form.n_cols, kept, fake_quantized);
            }
            if ends_block {
                let digest = self.coder.end_block();
                if !is_turned {
                    out.found.digests.push(digest);
                    out.put(PartsOut::FULL)?;
                }
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// The encoded parts of a tensor before they are written. Long parts are written while they are still in the
/// cache.
struct PartsOut<'a, 'b> {
    tensor: usize,
    /// The offset of the next bytes of each part.
    next: PartOffsets,
    encoder: RowEncoder,
    blocks: Option<BlocksOut>,
    writes: &'a mut Writes<'b>,
    found: TaskOutcome,
}

impl PartsOut<'_, '_> {
    /// Size at which a part is written.
    const FULL: usize = 256 << 10;

    /// Writes and clears the parts of at least `n_bytes`, together with the parts interleaved with them.
    ///
    /// The encoder must have encoded whole rows.
    fn put(&mut self, n_bytes: usize) -> Result<()> {
        if let Some(blocks) = &mut self.blocks {
            let next = &mut self.next[Part::Blocks as usize];
            while let Some(n_codes) = blocks.code(&mut self.encoder.parts_mut()[Part::Blocks]) {
                self.found.block_bytes.push(blocks.coded.len() as u64);
                self.writes.put(self.tensor, Part::Blocks, *next, &blocks.coded)?;
                *next += n_codes as u64;
            }
            return self.put_parts(n_bytes, &[Part::Scale, Part::Zero, Part::ColumnScale]);
        }
        self.put_parts(n_bytes, &Part::ALL)
    }

    /// Writes a piece of a tensor that is stored in its own order, and hashes it.
    fn put_turned(&mut self, tensor: &TensorPlan, rows: &Range<usize>, buffer: &mut PieceBuffer) -> Result<()> {
        let parts = self.encoder.parts_mut();
        turned::turn_back(tensor, rows, parts, buffer, &mut self.found.digests);
        match rows.len() == tensor.rows().n_rows {
            true => Ok(()),
            false => turned::put(tensor, rows, parts, self.writes, self.tensor),
        }
    }

    fn put_parts(&mut self, n_bytes: usize, which: &[Part]) -> Result<()> {
        for &part in which {
            let parts = self.encoder.parts_mut();
            if parts[part].len() >= n_bytes.max(1) {
                self.writes.take(self.tensor, part, &mut self.next, parts)?;
            }
        }
        Ok(())
    }
}

/// Returns the size in bytes of each part before a piece.
fn offsets_before(task: &EncodeTask, start: &PieceStart) -> PartOffsets {
    let Subject { tensor, coding, .. } = task.subject;
    let parts = coding.parts(tensor.value_dtype(), start.rows.start, tensor.rows().n_cols, start.n_kept);
    let mut offsets = [0; Part::ALL.len()];
    for spec in parts {
        let is_shared = matches!(spec.part, Part::Scale | Part::Zero | Part::ColumnScale) && start.rows.start == 0;
        offsets[spec.part as usize] = match spec.part {
            _ if is_shared => 0,
            // A block reserves one byte per code.
            Part::Blocks => (start.rows.start * tensor.rows().n_cols) as u64,
            _ => spec.n_bytes() as u64,
        };
    }
    offsets
}

/// Copies a piece of an unchanged tensor. Weights are checked for NaN.
fn copy_piece(task: &EncodeTask, piece: &mut Piece, out: &mut PartsOut) -> Result<()> {
    let (tensor, digests) = (task.subject.tensor, &mut out.found.digests);
    let next = &mut out.next[Part::Weight as usize];
    out.writes.put(out.tensor, Part::Weight, *next, piece.bytes)?;
    *next += piece.bytes.len() as u64;
    if !tensor.info.dtype.is_weight() {
        digests.extend(piece.bytes.chunks(tensor.rows().rows_per_block()).map(Hash128::of_block));
        return Ok(());
    }
    piece.for_each_block(|block| {
        if !task.passes_nonfinite {
            check_finite(tensor, &block)?;
        }
        digests.push(Hash128::of_block(block.bytes));
        Ok(())
    })
}
