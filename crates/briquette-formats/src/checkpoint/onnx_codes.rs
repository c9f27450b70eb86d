//! The tensors of a quantized ONNX model, with the weights that its nodes decode as codes.

use crate::foreign::ForeignLayout;
use crate::onnx::{CodeGroups, CodeOrder, CodedWeight};
use crate::plain::{PlainFiles, TensorsByName};
use crate::stored::{PartBytes, StoredDir, StoredTensor};
use crate::{ActivationRounding, TensorInfo, TensorSource};
use briquette_core::encoded::{Codes, Part, ScaleType};
use briquette_core::{Coding, DType, Error, GridKind, Grouping, OutputAxis, Result, Storage};
use std::collections::BTreeMap;

/// Assembles the tensors; `coded` has the weights with codes by the names that nodes read.
///
/// # Errors
/// Input: the elements of a weight or of its scales are not in one piece.
pub(super) fn stored(plain: PlainFiles, coded: &BTreeMap<String, CodedWeight>) -> Result<StoredDir> {
    let (found, coded) = (plain.by_name(), coded.values().map(|own| (own.codes.as_str(), own)).collect());
    let codes = NodeCodes { found, coded };
    let at =
        |info: &TensorInfo| codes.tensor(info).map_err(|error: Error| error.at(format_args!("tensor {:?}", info.name)));
    let tensors = plain.tensors().iter().map(at).collect::<Result<Vec<_>>>()?;
    Ok(StoredDir::new(plain.into_files(), tensors))
}

/// The tensors of the files, and how nodes decode them.
struct NodeCodes<'a> {
    found: TensorsByName<'a>,
    /// The weights by the names of their codes.
    coded: BTreeMap<&'a str, &'a CodedWeight>,
}

impl NodeCodes<'_> {
    fn place(&self, name: &str, layout: Option<ForeignLayout>) -> Result<PartBytes> {
        let missing =
            || Error::input("its elements are in several pieces; write the model again with the onnx package");
        let (_, file, offset) = self.found.get(name).ok_or_else(missing)?;
        Ok(match layout {
            Some(layout) => PartBytes::Foreign { file, offset, layout: Box::new(layout) },
            None => PartBytes::File { file, offset },
        })
    }

    fn tensor(&self, info: &TensorInfo) -> Result<StoredTensor> {
        let Some(own) = self.coded.get(info.name.as_str()) else {
            return Ok(tensor_of(info.clone(), Coding::DENSE, vec![(Part::Weight, self.place(&info.name, None)?)]));
        };
        let (axis, activations) = match own.order {
            CodeOrder::Groups(_) => (OutputAxis::First, None),
            CodeOrder::OutputsLast => (OutputAxis::Last, Some(ActivationRounding::Fixed)),
            CodeOrder::Outputs | CodeOrder::Tensor => (OutputAxis::First, Some(ActivationRounding::Fixed)),
        };
        let (codes, parts) = match (own.order, own.shape.as_slice()) {
            (CodeOrder::Groups(groups), &[n_out, n_in]) => self.groups(own, groups, [n_out, n_in])?,
            _ => self.int8(own)?,
        };
        let info = TensorInfo::checked(info.name.to_string(), DType::F32, own.shape.clone())?;
        let tensor = tensor_of(info, Coding { storage: Storage::Dense, codes: Some(codes) }, parts);
        Ok(StoredTensor { axis, activations, ..tensor })
    }

    /// Codes with a scale for each output, or with one.
    fn int8(&self, own: &CodedWeight) -> Result<(Codes, Vec<(Part, PartBytes)>)> {
        let grouping = if own.order == CodeOrder::Tensor { Grouping::Tensor } else { Grouping::Row };
        let layout = match (own.order, own.shape.as_slice()) {
            (CodeOrder::OutputsLast, &[n_in, n_out]) => {
                Some(ForeignLayout::Transposed { n_rows: n_out, n_cols: n_in, n_bits: 8, flip: 0 })
            }
            _ => None,
        };
        let parts = vec![(Part::Codes, self.place(&own.codes, layout)?), (Part::Scale, self.place(&own.scale, None)?)];
        let codes =
            Codes { bits: 8, grid: GridKind::SymmetricFull, grouping, scale: ScaleType::F32, has_columns: false };
        Ok((codes, parts))
    }

    /// Codes of a matrix `[out, in]` with a scale for each group of inputs.
    fn groups(
        &self,
        own: &CodedWeight,
        groups: CodeGroups,
        [n_out, n_in]: [usize; 2],
    ) -> Result<(Codes, Vec<(Part, PartBytes)>)> {
        let CodeGroups { bits, size, is_signed, is_turned, pads_zeros } = groups;
        let n_groups = n_in / size;
        let turned = |n_cols, n_bits, flip| ForeignLayout::Transposed { n_rows: n_out, n_cols, n_bits, flip };
        let rows = |row_bytes, flip| ForeignLayout::Words { row_bytes, pitch: row_bytes, flip };
        // Briquette's 4-bit codes are above their values by 8, its bytes have a sign.
        let flip = match (bits, is_signed) {
            (4, true) => 0x88,
            (4, false) | (_, true) => 0,
            (_, false) => 0x80,
        };
        let codes = if is_turned { turned(n_in, bits, flip) } else { rows(n_in * usize::from(bits) / 8, flip) };
        let scale_type = self.found.get(own.scale.as_str()).map(|(info, ..)| info.dtype);
        let (scale, scale_layout) = match scale_type {
            Some(DType::F16) => (ScaleType::F16, is_turned.then(|| turned(n_groups, 16, 0))),
            Some(DType::BF16) => (ScaleType::F32, Some(ForeignLayout::Bf16)),
            _ => (ScaleType::F32, is_turned.then(|| turned(n_groups, 32, 0))),
        };
        let mut parts = vec![
            (Part::Codes, self.place(&own.codes, Some(codes))?),
            (Part::Scale, self.place(&own.scale, scale_layout)?),
        ];
        if let Some(zeros) = &own.zeros {
            let pitch = match (is_turned, pads_zeros) {
                (true, _) => n_out,
                (false, true) => n_groups.next_multiple_of(2),
                (false, false) => n_groups,
            };
            let layout = match bits {
                4 => ForeignLayout::ZeroPairs { n_groups, pitch, is_turned, is_signed },
                _ if is_turned => turned(n_groups, 8, flip),
                _ => rows(n_groups, flip),
            };
            parts.push((Part::Zero, self.place(zeros, Some(layout))?));
        }
        let grid = if own.zeros.is_some() { GridKind::Asymmetric } else { GridKind::SymmetricFull };
        Ok((Codes { bits, grid, grouping: Grouping::Group(size), scale, has_columns: false }, parts))
    }
}

fn tensor_of(info: TensorInfo, coding: Coding, parts: Vec<(Part, PartBytes)>) -> StoredTensor {
    let n_kept = info.n_elements();
    StoredTensor { info, axis: OutputAxis::First, coding, n_kept, activations: None, parts }
}
