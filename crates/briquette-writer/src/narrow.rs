//! Finds scales and values that do not fit a narrow float type, and plans a wider type for their tensors.

use crate::piece::Strip;
use crate::plan::{Plan, TensorPlan, listed};
use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, DType, Decision, Error, Remedy, Result, rows, simd};
use std::collections::BTreeMap;

/// The remarks about tensors whose scales do not fit their type.
const F32_SCALES: [(ScaleType, &str); 2] = [
    (ScaleType::F16, "scales are f32, as they do not fit f16"),
    (ScaleType::Log8, "scales are f32, as they do not fit one byte"),
];

/// The range of scales and values of an encoded tensor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Narrowness {
    /// Whether a scale does not fit its type.
    pub loses_scales: bool,
    /// The largest magnitude of the kept weights, if the tensor is cast or F64.
    pub largest: f64,
    /// Whether all weights became 0 by rounding.
    pub is_all_lost: bool,
}

impl Narrowness {
    /// Adds the kept weights and the scales of some rows.
    pub(crate) fn push(&mut self, tensor: &TensorPlan, strip: &Strip, kept: &[f32], affines: &[Affine]) {
        self.loses_scales |= !tensor.holds_scales(affines);
        if tensor.cast.is_some() || tensor.info.dtype == DType::F64 {
            self.largest = self.largest.max(largest_of(tensor, strip, kept));
        }
    }

    /// Adds the results of other rows.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.loses_scales |= other.loses_scales;
        self.largest = self.largest.max(other.largest);
    }
}

/// Returns the largest magnitude of kept weights. If f32 rounds F64 weights to 0, their original magnitude
/// counts.
fn largest_of(tensor: &TensorPlan, strip: &Strip, kept: &[f32]) -> f64 {
    let largest = f64::from(f32::from_bits(simd::max_magnitude(kept)));
    if largest > 0.0 || tensor.info.dtype != DType::F64 {
        return largest;
    }
    let own = strip.bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes).abs());
    own.fold(0.0, f64::max)
}

impl TensorPlan<'_> {
    /// Returns whether the planned type of the scales stores all of these exactly.
    pub fn holds_scales(&self, affines: &[Affine]) -> bool {
        match self.quant.map(|quant| quant.spec.scale) {
            Some(scale @ (ScaleType::F16 | ScaleType::Log8)) => affines.iter().all(|&affine| scale.holds(affine)),
            Some(ScaleType::F32) | None => true,
        }
    }
}

impl TensorPlan<'_> {
    /// Plans f32 scales, and returns the former type.
    fn widen_scales(&mut self) -> Option<ScaleType> {
        let quant = self.quant.as_mut()?;
        Some(std::mem::replace(&mut quant.spec.scale, ScaleType::F32))
    }
}

impl Plan<'_> {
    /// Plans a wider type for tensors with scales or values that do not fit. Returns whether the plan changed.
    ///
    /// Scales become f32. A tensor that is too small for the type of its cast keeps its own. `found` has the
    /// tensors whose range is not the default.
    ///
    /// # Errors
    /// Refused: f32 rounds all weights of an F64 tensor to 0.
    pub(crate) fn widen(&mut self, found: &BTreeMap<usize, Narrowness>) -> Result<bool> {
        let (mut scales, mut casts, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for (&index, found) in found {
            let tensor = &mut self.tensors[index];
            if found.loses_scales {
                scales.extend(tensor.widen_scales().map(|scale| (index, scale)));
            }
            if let Some(dtype) = tensor.cast.filter(|dtype| !rows::keeps_bits(found.largest, *dtype)) {
                (tensor.cast, tensor.skipped) = (None, Some(format!("too small for {dtype}")));
                casts.push(index);
            }
            check_double(tensor, found.largest)?;
            if found.is_all_lost && tensor.quant.is_some() && tensor.prune.is_none() {
                lost.push(index);
            }
        }
        let is_wider = !scales.is_empty() || !casts.is_empty();
        if is_wider {
            self.remark_scales(&scales);
            self.remark(&casts, "not cast, as the weights are too small for the new type");
        } else {
            self.remark(&lost, "all weights became zero, as they are too small for the scheme");
        }
        Ok(is_wider)
    }

    /// Plans f32 scales for tensors whose scales do not fit their type. Returns whether the plan changed.
    ///
    /// `decisions` have the index of their tensor.
    pub fn widen_scales(&mut self, decisions: &[(usize, Decision)]) -> bool {
        let fits_scale = |(index, decision): &&(usize, Decision)| {
            let affines = decision.quant.as_ref().map_or(&[][..], |quant| &quant.affines);
            self.tensors[*index].holds_scales(affines)
        };
        let found: Vec<usize> = decisions.iter().filter(|one| !fits_scale(one)).map(|(index, _)| *index).collect();
        let widened = found.iter().filter_map(|&index| Some((index, self.tensors[index].widen_scales()?)));
        let widened: Vec<(usize, ScaleType)> = widened.collect();
        self.remark_scales(&widened);
        !found.is_empty()
    }

    /// Adds remarks about tensors that got f32 scales instead of these.
    fn remark_scales(&mut self, widened: &[(usize, ScaleType)]) {
        for (scale, what) in F32_SCALES {
            let of_it = widened.iter().filter(|(_, old)| *old == scale).map(|(index, _)| *index);
            self.remark(&of_it.collect::<Vec<usize>>(), what);
        }
    }

    /// Adds a remark about some tensors, if there are any.
    fn remark(&mut self, tensors: &[usize], what: &str) {
        if let Some(names) = listed(tensors.iter().map(|&index| &self.tensors[index])) {
            self.remarks.push(format!("{names}: {what}."));
        }
    }
}

/// Refuses F64 weights that are 0 in f32, because all computations use f32.
fn check_double(tensor: &TensorPlan, largest: f64) -> Result<()> {
    if tensor.info.dtype != DType::F64 || !tensor.is_changed() || rows::keeps_bits(largest, DType::F32) {
        return Ok(());
    }
    let message = format!(
        "found weights of at most {largest:e}, expected at least 1e-42, as weights are rounded to f32; exclude the tensor"
    );
    Err(Error::refused(message).at(tensor.culprit()))
}

/// Refuses a block with a value that overflows the type of its tensor, even if it is stored as a code.
///
/// # Errors
/// Refused: a value is infinite in the type. The error names the first one.
pub(crate) fn check_stored(tensor: &TensorPlan, block: &Strip, fake_quantized: &[f32]) -> Result<()> {
    let dtype = tensor.stored_dtype();
    if rows::fits(f32::from_bits(simd::max_magnitude(fake_quantized)), dtype) {
        return Ok(());
    }
    let first = fake_quantized.iter().position(|value| !rows::fits(*value, dtype)).unwrap_or(0);
    let (row, col) = (block.first_row + first / tensor.rows().n_cols, first % tensor.rows().n_cols);
    let found = block.values[first];
    let error =
        |what: String| Error::refused(format!("found {found} at row {row}, column {col}, {what}")).at(tensor.culprit());
    Err(match tensor.cast {
        Some(_) => error(format!(
            "which is infinity in {dtype}; cast to bf16, exclude the tensor, or keep such tensors in their own type"
        ))
        .with_remedy(Remedy::AllowNonfinite),
        None => error(format!("which is infinity in {dtype} after rounding to its grid; exclude the tensor")),
    })
}
