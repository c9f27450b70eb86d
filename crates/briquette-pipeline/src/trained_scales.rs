//! Scales that a training chose for the codes of a quantized model.
//!
//! The training stores factors: a safetensors file with a vector of F32 for each tensor, a number for each scale. The output has the
//! codes of its model, and `scale · factor` rounded to the type of the scale.

use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{Affine, DType, Error, Grouping, Result, rows};
use briquette_formats::stored::DecodeBuffers;
use briquette_formats::{Checkpoint, StoredDir, TensorInfo, TensorSource};
#[cfg(feature = "model")]
use briquette_formats::{Draft, safetensors, sums};
use briquette_writer::Plan;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The name of the file with the factors.
pub(crate) const FILE: &str = "scales.safetensors";

/// Writes a directory with the factors of scales, by the name of the tensor, and the report of the training.
///
/// # Errors
/// Io: it cannot be written.
#[cfg(feature = "model")]
pub(crate) fn write(directory: &Path, factors: &BTreeMap<String, Vec<f32>>, report: (&str, Vec<u8>)) -> Result<()> {
    let bytes = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
    let tensors = factors.iter().map(|(name, values)| (name.clone(), (DType::F32, vec![values.len()], bytes(values))));
    let files = [(FILE, safetensors::to_file(&tensors.collect())?), report];
    let draft = Draft::create(directory, &[], false)?;
    for (name, bytes) in &files {
        draft.write_file(Path::new(name), bytes)?;
    }
    let found = files.iter().map(|(name, bytes)| (name.to_string(), sums::sha256_of_bytes(bytes))).collect();
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&found).as_bytes())?;
    draft.publish()
}

/// A source of tensors in which scales of codes are multiplied by factors.
pub(crate) struct RescaledSource<'a> {
    source: &'a dyn TensorSource,
    stored: &'a StoredDir,
    /// Factors by the index of the tensor.
    factors: BTreeMap<usize, Vec<f32>>,
}

/// Returns a source with the scales of the factors in a file, and marks their tensors as changed.
///
/// # Errors
/// - Input: the file is damaged, or of another model.
/// - Io: the file cannot be read.
pub(crate) fn rescaled<'a>(
    path: &Path,
    plan: &mut Plan,
    checkpoint: &'a Checkpoint,
    source: &'a dyn TensorSource,
) -> Result<RescaledSource<'a>> {
    let misfit = |what: &str| Error::input(format!("found factors of {what}; run the recipe again with --force"));
    let stored = checkpoint.stored().ok_or_else(|| misfit("codes for a model without codes").at(path.display()))?;
    let file = Checkpoint::open(path)?;
    let mut factors = BTreeMap::new();
    for (place, info) in file.tensors().iter().enumerate() {
        let is_trained = |index: usize| {
            let codes = stored.tensors[index].coding.codes;
            codes.is_some_and(|codes| {
                codes.scale != ScaleType::Log8 && info.n_elements() == n_scales(stored, index, &codes)
            })
        };
        let Some(index) = stored.find(&info.name).filter(|index| is_trained(*index)) else {
            return Err(misfit(&format!("other scales than those of {:?}", info.name)).at(path.display()));
        };
        let (mut bytes, mut values) = (vec![0; info.n_bytes()], vec![0.0; info.n_elements()]);
        file.read(place, 0, &mut bytes)?;
        rows::to_f32(&bytes, DType::F32, &mut values);
        plan.tensors[index].is_moved = true;
        factors.insert(index, values);
    }
    Ok(RescaledSource { source, stored, factors })
}

/// Returns the number of scales of a tensor.
fn n_scales(stored: &StoredDir, index: usize, codes: &Codes) -> usize {
    let rows = stored.tensors[index].rows();
    match codes.grouping {
        Grouping::Tensor => 1,
        grouping => rows.n_rows * grouping.per_row(rows.n_cols).unwrap_or(1),
    }
}

impl RescaledSource<'_> {
    /// Returns the scales of some rows before and after the factors.
    fn scales(&self, index: usize, rows: Range<usize>, factors: &[f32]) -> Result<Vec<[Affine; 2]>> {
        let tensor = &self.stored.tensors[index];
        let Some(codes) = tensor.coding.codes else { return Ok(Vec::new()) };
        let factors = match codes.grouping.per_row(tensor.rows().n_cols).filter(|_| codes.grouping != Grouping::Tensor)
        {
            Some(per_row) => &factors[rows.start * per_row..rows.end * per_row],
            None => factors,
        };
        let new = |(before, factor): (Affine, &f32)| {
            [before, codes.scale.round(Affine { scale: before.scale * factor, ..before })]
        };
        Ok(self.stored.affines(index, rows)?.into_iter().zip(factors).map(new).collect())
    }
}

impl TensorSource for RescaledSource<'_> {
    fn below(&self) -> Option<&dyn TensorSource> {
        Some(self.source)
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.source.read(index, start, out)
    }

    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        match self.factors.get(&index) {
            Some(factors) => Ok(self.scales(index, rows, factors)?.into_iter().map(|[_, after]| after).collect()),
            None => self.source.affines(index, rows),
        }
    }

    fn updated(&self, index: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        let Some(factors) = self.factors.get(&index) else { return self.source.updated(index, rows) };
        let scales = self.scales(index, rows.clone(), factors)?;
        let mut values = vec![0.0_f32; rows.len() * self.stored.tensors[index].rows().n_cols];
        self.stored.decode_rows(index, rows, &mut DecodeBuffers::default(), bytemuck::cast_slice_mut(&mut values))?;
        let Some(grid) = self.stored.tensors[index].coding.codes.and_then(Codes::grid) else { return Ok(values) };
        let (columns, size) = (self.columns(index)?, values.len().div_ceil(scales.len().max(1)).max(1));
        columns.iter().for_each(|columns| columns.divide(&mut values));
        for (values, [before, after]) in values.chunks_mut(size).zip(scales) {
            values.iter_mut().for_each(|value| *value = after.dequantize(before.quantize(*value, grid)));
        }
        columns.iter().for_each(|columns| columns.multiply(&mut values));
        Ok(values)
    }
}
