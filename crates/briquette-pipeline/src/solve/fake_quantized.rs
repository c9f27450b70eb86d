//! A checkpoint with the dequantized values of its tensors.

use super::one::Solver;
use super::source::SolvedSource;
use briquette_core::decision::fake_quantize;
use briquette_core::{DType, Result, rows};
use briquette_formats::{Checkpoint, InputFile, TensorInfo, TensorSource};
use briquette_writer::{Plan, TensorPlan};
use std::collections::BTreeMap;

/// A checkpoint in which some tensors have other values, in f32.
pub(crate) struct Simulated<'a> {
    checkpoint: &'a Checkpoint,
    infos: Vec<TensorInfo>,
    /// The values in file order.
    values: BTreeMap<usize, Vec<u8>>,
}

impl<'a> Simulated<'a> {
    /// Creates a checkpoint with other values for one tensor, row-major.
    pub(crate) fn one(checkpoint: &'a Checkpoint, tensor: &TensorPlan, values: &[f32]) -> Self {
        let mut fake_quantized = Self { checkpoint, infos: checkpoint.tensors().to_vec(), values: BTreeMap::new() };
        fake_quantized.set(tensor, tensor.index(), values);
        fake_quantized
    }

    /// Creates a checkpoint with the final values of a plan's tensors that `is_chosen` accepts.
    pub(super) fn of(
        checkpoint: &'a Checkpoint,
        plan: &Plan,
        (solver, source): (&Solver, &SolvedSource),
        is_chosen: impl Fn(&TensorPlan) -> bool,
    ) -> Result<Self> {
        let mut fake_quantized = Self { checkpoint, infos: checkpoint.tensors().to_vec(), values: BTreeMap::new() };
        let changed = plan.tensors.iter().filter(|tensor| tensor.is_changed() || tensor.tied_to().is_some());
        for tensor in changed.filter(|tensor| tensor.info.dtype.is_weight() && is_chosen(tensor)) {
            let main = &plan.tensors[tensor.tied_to().unwrap_or(tensor.index())];
            let (n_rows, n_cols) = (main.rows().n_rows, main.rows().n_cols);
            let mut values = match source.weights(main.index())? {
                Some(updated) => updated,
                None => {
                    let (values, decision) = solver.plain(main.index())?;
                    fake_quantize(&values, n_rows, n_cols, &decision)
                }
            };
            if main.quant.is_none() {
                round_to(&mut values, main.stored_dtype());
            }
            fake_quantized.set(main, tensor.index(), &values);
        }
        Ok(fake_quantized)
    }

    /// Sets the values of a tensor, row-major.
    fn set(&mut self, like: &TensorPlan, index: usize, values: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut own = vec![0; bytes.len()];
        match like.rows().axis.is_turned() {
            true => like.rows().turn_back(bytes, &mut own, 4),
            false => own.copy_from_slice(bytes),
        }
        self.infos[index].dtype = DType::F32;
        self.values.insert(index, own);
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
            Some(own) => {
                out.copy_from_slice(&own[start..start + out.len()]);
                Ok(())
            }
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
