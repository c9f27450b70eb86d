//! The tensors of a quantized ONNX model, with the weights that its nodes decode as codes.

use crate::foreign::ForeignLayout;
use crate::onnx::CodedWeight;
use crate::plain::PlainFiles;
use crate::stored::{PartBytes, StoredDir, StoredTensor};
use crate::{ActivationRounding, TensorInfo, TensorSource};
use briquette_core::encoded::{Codes, Part, ScaleType};
use briquette_core::{Coding, DType, Error, GridKind, Grouping, OutputAxis, Result, Storage};
use std::collections::BTreeMap;

/// Assembles the tensors; `coded` has the weights with codes by name.
///
/// # Errors
/// Input: the elements of a weight or of its scales are not in one piece.
pub(super) fn stored(plain: PlainFiles, coded: &BTreeMap<String, CodedWeight>) -> Result<StoredDir> {
    let found = plain.by_name();
    let place = |name: &str| {
        let missing =
            || Error::input("its elements are in several pieces; write the model again with the onnx package");
        let (_, file, offset) = found.get(name).ok_or_else(missing)?;
        Ok::<_, Error>(PartBytes::File { file, offset })
    };
    let tensor = |info: &TensorInfo| {
        let Some(codes) = coded.get(info.name.as_str()) else {
            return Ok(tensor_of(info.clone(), Coding::DENSE, vec![(Part::Weight, place(&info.name)?)]));
        };
        let grouping = if codes.is_by_tensor { Grouping::Tensor } else { Grouping::Row };
        let axis = if codes.is_turned { OutputAxis::Last } else { OutputAxis::First };
        let own = match (place(&info.name)?, &info.shape.0[..]) {
            (PartBytes::File { file, offset }, &[n_in, n_out]) if codes.is_turned => {
                let layout = Box::new(ForeignLayout::Transposed { n_rows: n_out, n_cols: n_in });
                PartBytes::Foreign { file, offset, layout }
            }
            (own, _) => own,
        };
        let parts = vec![(Part::Codes, own), (Part::Scale, place(&codes.scale)?)];
        let codes =
            Codes { bits: 8, grid: GridKind::SymmetricFull, grouping, scale: ScaleType::F32, has_columns: false };
        let info = TensorInfo::checked(info.name.to_string(), DType::F32, info.shape.0.clone())?;
        let tensor = tensor_of(info, Coding { storage: Storage::Dense, codes: Some(codes) }, parts);
        Ok(StoredTensor { axis, activations: Some(ActivationRounding::Fixed), ..tensor })
    };
    let at = |info: &TensorInfo| tensor(info).map_err(|error: Error| error.at(format_args!("tensor {:?}", info.name)));
    let tensors = plain.tensors().iter().map(at).collect::<Result<Vec<_>>>()?;
    Ok(StoredDir::new(plain.into_files(), tensors))
}

fn tensor_of(info: TensorInfo, coding: Coding, parts: Vec<(Part, PartBytes)>) -> StoredTensor {
    let n_kept = info.n_elements();
    StoredTensor { info, axis: OutputAxis::First, coding, n_kept, activations: None, parts }
}
