//! The tensors in a file that store a tensor of the model.

use crate::TensorInfo;
use crate::foreign::{BlockLayout, ForeignLayout};
use briquette_core::encoded::{Part, PartSpec};
use briquette_core::{Coding, OutputAxis, Result, Rows, Shape};
use std::sync::Arc;

/// A tensor of a file that stores all or a part of a tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// The name, type and shape in the file.
    pub info: TensorInfo,
    /// The contents of its bytes.
    pub holds: Holds,
}

/// The contents of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// Constant bytes, which only repeat the manifest.
    Constant(Vec<u8>),
    /// A part of the coding, with its layout if that is not Briquette's.
    Part(Part, Option<ForeignLayout>),
    /// Several parts, interleaved in blocks of one size: see [`weave`](crate::foreign::weave).
    Woven(Vec<(Part, BlockLayout)>),
}

impl Holds {
    /// Returns the parts of the coding, each with its layout if that is not Briquette's.
    pub fn parts(&self) -> impl Iterator<Item = (Part, Option<ForeignLayout>)> {
        let (one, woven) = match self {
            Self::Constant(_) => (None, [].as_slice()),
            Self::Part(part, layout) => (Some((*part, *layout)), [].as_slice()),
            Self::Woven(parts) => (None, parts.as_slice()),
        };
        one.into_iter().chain(woven.iter().map(|(part, blocks)| (*part, Some(ForeignLayout::BlockLayout(*blocks)))))
    }

    /// Returns the bytes, if they do not depend on the weights.
    pub fn constant(&self) -> Option<&[u8]> {
        match self {
            Self::Constant(bytes) => Some(bytes),
            Self::Part(..) | Self::Woven(_) => None,
        }
    }
}

/// Returns the parts of a coding in Briquette's layout: `T`, or `T.codes` and so on, each as a tensor.
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
        let shape = if spec.part == Part::Weight { tensor.shape.clone() } else { Arc::new(Shape(spec.shape)) };
        let name = [tensor.name.as_str(), spec.part.suffix()].concat().into();
        let info = TensorInfo { name, dtype: spec.dtype, shape };
        FilePart { info, holds: Holds::Part(spec.part, None) }
    };
    Ok(specs.into_iter().map(part).collect())
}
