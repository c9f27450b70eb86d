//! What stands in a file for a tensor, alone or with others.

use crate::TensorInfo;
use crate::foreign::{BlockLayout, ForeignLayout};
use briquette_core::encoded::{Part, PartSpec};
use briquette_core::{Coding, OutputAxis, Result, Rows, Shape};

/// A tensor of a file that stands, alone or with others, for a tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Its name, type and shape in the file.
    pub info: TensorInfo,
    /// What its bytes are.
    pub holds: Holds,
}

/// What the bytes of a tensor of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// These, which only repeat what the manifest says.
    Constant(Vec<u8>),
    /// A part of the coding, and how its bytes differ from ours, where they do.
    Part(Part, Option<ForeignLayout>),
    /// Several parts, woven together in blocks of one size: see [`weave`](crate::foreign::weave).
    Woven(Vec<(Part, BlockLayout)>),
}

impl Holds {
    /// The parts of the coding that are there, and how the bytes of each differ from ours, where they do.
    pub fn parts(&self) -> impl Iterator<Item = (Part, Option<ForeignLayout>)> {
        let (one, woven) = match self {
            Self::Constant(_) => (None, [].as_slice()),
            Self::Part(part, layout) => (Some((*part, *layout)), [].as_slice()),
            Self::Woven(parts) => (None, parts.as_slice()),
        };
        one.into_iter().chain(woven.iter().map(|(part, blocks)| (*part, Some(ForeignLayout::BlockLayout(*blocks)))))
    }

    /// The bytes, where they are known without the weights.
    pub fn constant(&self) -> Option<&[u8]> {
        match self {
            Self::Constant(bytes) => Some(bytes),
            Self::Part(..) | Self::Woven(_) => None,
        }
    }
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
        let name = [tensor.name.as_str(), spec.part.suffix()].concat();
        let info = TensorInfo { name, dtype: spec.dtype, shape };
        FilePart { info, holds: Holds::Part(spec.part, None) }
    };
    Ok(specs.into_iter().map(part).collect())
}
