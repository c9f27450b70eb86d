//! What stands in a file for a tensor, alone or with others.

use crate::TensorInfo;
use crate::foreign::ForeignLayout;
use briquette_core::encoded::{Part, PartSpec};
use briquette_core::{Coding, OutputAxis, Result, Rows, Shape};

/// A tensor of a file that stands, alone or with others, for a tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Which part of the coding it is; `None` for one that only repeats what the manifest says.
    pub part: Option<Part>,
    /// Its name, type and shape in the file.
    pub info: TensorInfo,
    /// Its bytes, where they are known without the weights.
    pub constant: Option<Vec<u8>>,
    /// How its bytes differ from ours, where they do.
    pub layout: Option<ForeignLayout>,
}

/// The parts of a coding as they are: `T`, or `T.codes` and so on, each a tensor of its own.
pub(super) fn own_parts(
    tensor: &TensorInfo,
    axis: OutputAxis,
    coding: Coding,
    n_kept: usize,
    _activations: Option<&str>,
) -> Result<Vec<FilePart>> {
    let rows = Rows::of(&tensor.shape, axis);
    let specs = coding.parts(tensor.dtype, rows.n_rows, rows.n_cols, n_kept);
    let part = |spec: PartSpec| {
        let shape = if spec.part == Part::Weight { tensor.shape.clone() } else { Shape(spec.shape) };
        let name = format!("{}{}", tensor.name, spec.part.suffix());
        let info = TensorInfo { name, dtype: spec.dtype, shape };
        FilePart { part: Some(spec.part), info, constant: None, layout: None }
    };
    Ok(specs.into_iter().map(part).collect())
}
