//! The codes that a format supports, and defaults for new codes.

use super::file_part::FilePart;
use crate::{ActivationRounding, ValueGrid};
use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{GridKind, OutputAxis};

/// The codes that a format supports.
#[derive(Debug)]
pub struct CodeSupport {
    /// Returns why the format does not support codes of a weight with outputs on this axis.
    pub(super) misfit: fn(Codes, OutputAxis) -> Option<Misfit>,
    /// The grid of new codes, if the format fixes it.
    pub(super) grid: Option<GridKind>,
    /// Whether columns may have scales.
    pub(super) has_columns: bool,
    /// The type of scales, if the format fixes it.
    pub(super) scale: Option<ScaleType>,
    /// Whether activations may have fixed grids.
    pub has_static: bool,
    /// Returns the tensors that store the fixed grid of a layer's inputs, by the name of its weight; `None` if a file of its own lists
    /// the grids.
    pub(super) grid_parts: Option<fn(&str, ValueGrid) -> Vec<FilePart>>,
    /// The meaning of symmetric activation quantization.
    pub(super) symmetric: ActivationRounding,
}

/// The reason why a format does not support codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// The codes are of another kind.
    Scheme {
        /// The supported codes, in words.
        holds: &'static str,
        /// Schemes that are supported.
        instead: &'static str,
    },
    /// The weight is `[in, out]`.
    Turned {
        /// The supported layout, in words.
        holds: &'static str,
    },
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scheme { holds, .. } | Self::Turned { holds } => f.write_str(holds),
        }
    }
}

impl CodeSupport {
    /// Support for all codes.
    pub(super) const ALL: Self = Self {
        misfit: |_, _| None,
        grid: None,
        has_columns: true,
        scale: None,
        has_static: true,
        grid_parts: None,
        symmetric: ActivationRounding::Symmetric,
    };

    /// Returns why codes of a weight with outputs on this axis are not supported; `None` if they are.
    pub fn misfit(&self, codes: Codes, axis: OutputAxis) -> Option<Misfit> {
        if codes.has_columns && !self.has_columns {
            let holds = "the format does not support scales of columns";
            return Some(Misfit::Scheme { holds, instead: "a stage without column_scales, or the format briquette" });
        }
        (self.misfit)(codes, axis)
    }

    /// Returns whether the grid of a layer's inputs is stored beside its codes, as tensors of a weight file.
    pub fn has_grid_parts(&self) -> bool {
        self.grid_parts.is_some()
    }

    /// Returns the tensors that store the fixed grid of a layer's inputs, by the name of its weight; none if a file of its own lists the
    /// grids.
    pub fn grid_parts(&self, weight: &str, grid: ValueGrid) -> Vec<FilePart> {
        self.grid_parts.map_or_else(Vec::new, |parts| parts(weight, grid))
    }

    /// Returns the grid of new codes for a scheme with this grid.
    pub fn grid(&self, of_scheme: GridKind) -> GridKind {
        self.grid.unwrap_or(of_scheme)
    }

    /// Returns the type in which scales of this type are stored.
    pub fn scale(&self, of_scheme: ScaleType) -> ScaleType {
        self.scale.unwrap_or(of_scheme)
    }

    /// Returns the rounding for symmetric activation quantization.
    pub(crate) fn symmetric(&self) -> ActivationRounding {
        self.symmetric
    }
}
