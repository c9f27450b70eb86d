//! compressed-tensors, for transformers and vLLM.

use super::file_part::{FilePart, Holds, own_parts};
use super::held_codes::{CodeSupport, Misfit};
use super::row::{Container, FormatRow, HeaderStrings, Shards};
use crate::foreign::ForeignLayout;
use crate::{ActivationRounding, TensorInfo, ValueGrid};
use briquette_core::encoded::{Codes, Part, ScaleType};
use briquette_core::{Coding, DType, Error, GridKind, Grouping, OutputAxis, Result, Shape};
use std::sync::Arc;

/// Matrices of codes by the conventions of the library; all other tensors dense. Names as in Hugging Face.
pub(super) const ROW: FormatRow = FormatRow {
    name: "compressed-tensors",
    extension: "safetensors",
    container: Container::Safetensors(HeaderStrings::OfModel),
    shards: Shards::Indexed,
    is_sparse: false,
    ties: false,
    codes: Some(CodeSupport {
        misfit,
        grid: Some(GridKind::SymmetricFull),
        has_columns: false,
        has_static: true,
        grid_parts: Some(grid_parts),
        scale: Some(ScaleType::F32),
        // The compressed-tensors library runs the model, with its own activation scale.
        symmetric: ActivationRounding::SymmetricFull,
    }),
    is_for_transformers: true,
    file_parts,
};

fn misfit(codes: Codes, axis: OutputAxis) -> Option<Misfit> {
    if codes.grid == GridKind::Asymmetric || ![4, 8].contains(&codes.bits) {
        let holds = "compressed-tensors supports only symmetric int8 and int4";
        return Some(Misfit::Scheme { holds, instead: "int8, int8-dynamic, int4-gN or int4-gN-dynamic" });
    }
    let holds = "compressed-tensors requires weights [out, in]";
    axis.is_turned().then_some(Misfit::Turned { holds })
}

fn file_parts(
    tensor: &TensorInfo,
    axis: OutputAxis,
    coding: Coding,
    n_kept: usize,
    activations: Option<&str>,
) -> Result<Vec<FilePart>> {
    match coding.codes {
        Some(codes) => coded_parts(tensor, codes, activations),
        None => own_parts(tensor, axis, coding, n_kept, activations),
    }
}

/// Returns the parts of a quantized tensor.
///
/// With int8 activations these are `weight` I8 and `weight_scale`, else `weight_packed` I32, `weight_scale` and
/// `weight_shape`.
fn coded_parts(tensor: &TensorInfo, codes: Codes, activations: Option<&str>) -> Result<Vec<FilePart>> {
    let unsupported = |what: &str| {
        Error::config(format!("compressed-tensors does not support {what}"))
            .at(format_args!("tensor {:?}", tensor.name))
    };
    let &[n_rows, n_cols] = tensor.shape.0.as_slice() else {
        return Err(unsupported("codes of a tensor that is not a matrix"));
    };
    let part = |holds, name: &str, dtype, shape: Vec<usize>| FilePart {
        info: TensorInfo { name: format!("{}{name}", tensor.name).into(), dtype, shape: Arc::new(Shape(shape)) },
        holds,
    };
    let scale_shape = match codes.grouping {
        Grouping::Tensor => vec![1],
        grouping => grouping.scale_shape(n_rows, n_cols).to_vec(),
    };
    let scale = part(Holds::Part(Part::Scale, None), "_scale", DType::F32, scale_shape);
    match codes.bits {
        4 | 8 if is_int_quantized(codes, activations) => {
            let layout = (codes.bits == 4).then_some(ForeignLayout::SignedBytes { n_cols });
            Ok(vec![part(Holds::Part(Part::Codes, layout), "", DType::I8, vec![n_rows, n_cols]), scale])
        }
        4 | 8 => {
            // An empty tensor may have any number of columns.
            let n_bits = n_cols.checked_mul(codes.bits.into());
            let n_words = n_bits.ok_or_else(|| unsupported("rows of this many columns"))?.div_ceil(32);
            let words = Holds::Part(Part::Codes, Some(ForeignLayout::words(codes.bits, n_cols)));
            let shape = Holds::Constant([n_rows, n_cols].iter().flat_map(|&n| (n as i64).to_le_bytes()).collect());
            let packed = part(words, "_packed", DType::I32, vec![n_rows, n_words]);
            Ok(vec![packed, scale, part(shape, "_shape", DType::I64, vec![2])])
        }
        _ => Err(unsupported("widths other than 4 and 8 bits")),
    }
}

/// Returns the parts of the fixed grid of a layer's inputs: `input_scale` F32 and `input_zero_point` I8, of codes from -128.
fn grid_parts(weight: &str, grid: ValueGrid) -> Vec<FilePart> {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    let part = |name: &str, dtype, bytes: Vec<u8>| FilePart {
        info: TensorInfo { name: format!("{module}.{name}").into(), dtype, shape: Arc::new(Shape(vec![1])) },
        holds: Holds::Constant(bytes),
    };
    let scale = part("input_scale", DType::F32, (grid.scale as f32).to_le_bytes().to_vec());
    vec![scale, part("input_zero_point", DType::I8, vec![grid.zero.wrapping_sub(128)])]
}

/// Returns whether codes are stored unpacked, one in a byte (`int-quantized`).
///
/// Runtimes support this for int8 activations, with int8 weights that have one scale per row, and with int4
/// weights: compressed-tensors infers `int-quantized` for these, and vLLM reads W4A8 only in this form.
pub fn is_int_quantized(codes: Codes, activations: Option<&str>) -> bool {
    activations.is_some() && (codes.bits == 4 || codes.bits == 8 && !matches!(codes.grouping, Grouping::Group(_)))
}
