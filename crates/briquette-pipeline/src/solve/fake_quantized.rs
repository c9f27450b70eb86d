//! A checkpoint with the dequantized values of its tensors.

use super::one::Solver;
use super::rows::rows_of_decision;
use super::source::SolvedSource;
use briquette_core::decision::fake_quantize;
use briquette_core::{DType, Decision, Result, rows};
use briquette_formats::{Checkpoint, InputFile, TensorInfo, TensorSource};
use briquette_writer::piece::PieceReader;
use briquette_writer::{Plan, Stop, TensorPlan};
use std::collections::BTreeMap;

/// A checkpoint in which some tensors have other values, in f32.
pub(crate) struct Simulated<'a> {
    checkpoint: &'a Checkpoint,
    infos: Vec<TensorInfo>,
    values: BTreeMap<usize, SimulatedValues<'a>>,
}

/// The values of a tensor.
enum SimulatedValues<'a> {
    /// Values in file order.
    Held(Vec<u8>),
    /// Values that are computed row by row while they are read, so that a large tensor is not in memory twice.
    ByRows { tensor: &'a TensorPlan<'a>, decision: Decision },
}

impl<'a> Simulated<'a> {
    /// Creates a checkpoint with other values for one tensor, row-major.
    pub(crate) fn one(checkpoint: &'a Checkpoint, tensor: &TensorPlan, values: &[f32]) -> Self {
        let mut simulated = Self { checkpoint, infos: checkpoint.tensors().to_vec(), values: BTreeMap::new() };
        simulated.hold(tensor, tensor.index(), values);
        simulated
    }

    /// Creates a checkpoint with the final values of a plan's tensors that `is_chosen` accepts.
    pub(super) fn of(
        checkpoint: &'a Checkpoint,
        plan: &'a Plan<'a>,
        (solver, source): (&Solver, &SolvedSource),
        is_chosen: impl Fn(&TensorPlan) -> bool,
    ) -> Result<Self> {
        let mut simulated = Self { checkpoint, infos: checkpoint.tensors().to_vec(), values: BTreeMap::new() };
        let changed = plan.tensors.iter().filter(|tensor| tensor.is_changed() || tensor.tied_to().is_some());
        for tensor in changed.filter(|tensor| tensor.info.dtype.is_weight() && is_chosen(tensor)) {
            let main = &plan.tensors[tensor.tied_to().unwrap_or(tensor.index())];
            if let Some(mut updated) = source.weights(main.index())? {
                round_as_stored(main, &mut updated);
                simulated.hold(main, tensor.index(), &updated);
                continue;
            }
            let decision = solver.decision(main.index())?;
            if main.rows().axis.is_turned() || !checkpoint.reads_ranges(main.index()) {
                let values = solver.weights(main.index())?;
                simulated.hold(main, tensor.index(), &decided(main, &values, &decision));
            } else {
                simulated.infos[tensor.index()].dtype = DType::F32;
                simulated.values.insert(tensor.index(), SimulatedValues::ByRows { tensor: main, decision });
            }
        }
        Ok(simulated)
    }

    /// Sets the values of a tensor, row-major.
    pub(super) fn hold(&mut self, like: &TensorPlan, index: usize, values: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut own = vec![0; bytes.len()];
        match like.rows().axis.is_turned() {
            true => like.rows().turn_back(bytes, &mut own, 4),
            false => own.copy_from_slice(bytes),
        }
        self.infos[index].dtype = DType::F32;
        self.values.insert(index, SimulatedValues::Held(own));
    }

    /// Fills `out` with the values of rows from byte `start` on, as f32.
    fn read_rows(&self, tensor: &TensorPlan, decision: &Decision, start: usize, out: &mut [u8]) -> Result<()> {
        let n_cols = tensor.rows().n_cols;
        let step = (ELEMENTS_AT_ONCE / n_cols).max(1);
        let (row_bytes, end) = (4 * n_cols, start + out.len());
        let mut reader = PieceReader::default();
        let mut values = Vec::new();
        for first in (start / row_bytes..end.div_ceil(row_bytes)).step_by(step) {
            let rows = first..(first + step).min(end.div_ceil(row_bytes));
            values.clear();
            reader.read(self.checkpoint, tensor, &rows, &Stop::default())?.for_each_block(|block| {
                values.extend_from_slice(block.values);
                Ok(())
            })?;
            let found = decided(tensor, &values, &rows_of_decision(decision, &rows, n_cols));
            let (from, to) = (rows.start * row_bytes, rows.end * row_bytes);
            let overlap = from.max(start)..to.min(end);
            out[overlap.start - start..overlap.end - start]
                .copy_from_slice(&bytemuck::cast_slice(&found)[overlap.start - from..overlap.end - from]);
        }
        Ok(())
    }
}

/// Elements that are decoded at a time.
const ELEMENTS_AT_ONCE: usize = 1 << 14;

/// Returns the final values of rows.
fn decided(tensor: &TensorPlan, values: &[f32], decision: &Decision) -> Vec<f32> {
    let n_cols = tensor.rows().n_cols;
    let mut found = fake_quantize(values, values.len() / n_cols.max(1), n_cols, decision);
    round_as_stored(tensor, &mut found);
    found
}

/// Rounds values to the type in which a tensor is stored, unless it is stored as codes.
fn round_as_stored(tensor: &TensorPlan, values: &mut [f32]) {
    if tensor.quant.is_none() {
        round_to(values, tensor.stored_dtype());
    }
}

/// Rounds values to the precision of a type.
fn round_to(values: &mut [f32], dtype: DType) {
    if dtype == DType::F32 || dtype == DType::F64 {
        return;
    }
    let mut bytes = vec![0; values.len() * dtype.n_bits() / 8];
    rows::from_f32(values, dtype, &mut bytes);
    rows::to_f32(&bytes, dtype, values);
}

impl TensorSource for Simulated<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        match self.values.get(&index) {
            Some(SimulatedValues::Held(own)) => {
                out.copy_from_slice(&own[start..start + out.len()]);
                Ok(())
            }
            Some(SimulatedValues::ByRows { tensor, decision }) => self.read_rows(tensor, decision, start, out),
            None => self.checkpoint.read(index, start, out),
        }
    }

    fn reads_ranges(&self, index: usize) -> bool {
        self.values.contains_key(&index) || self.checkpoint.reads_ranges(index)
    }

    fn files(&self) -> Vec<&InputFile> {
        self.checkpoint.files()
    }
}
