//! Which codes a format holds, and what is chosen for it where not all are.

use crate::ActivationRounding;
use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{GridKind, OutputAxis};

/// Which codes a format holds.
#[derive(Debug)]
pub struct CodeSupport {
    /// Why it cannot hold some, of a weight whose outputs are this axis.
    pub(super) misfit: fn(Codes, OutputAxis) -> Option<Misfit>,
    /// The grid of new codes, where it is not the one that a scheme has.
    pub(super) grid: Option<GridKind>,
    /// The type of scales, where it is not the one that they have.
    pub(super) scale: Option<ScaleType>,
    /// What is meant by activations that are rounded around zero.
    pub(super) symmetric: ActivationRounding,
}

/// Why a format cannot hold codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// They are of the wrong kind.
    Scheme {
        /// What it holds, in words.
        holds: &'static str,
        /// Schemes to choose instead.
        instead: &'static str,
    },
    /// The weight lies `[in, out]`.
    Turned {
        /// What it holds, in words.
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
    /// Every code there is, as it is.
    pub(super) const ALL: Self =
        Self { misfit: |_, _| None, grid: None, scale: None, symmetric: ActivationRounding::Symmetric };

    /// Why these cannot be held, of a weight whose outputs are this axis; none where they can.
    pub fn misfit(&self, codes: Codes, axis: OutputAxis) -> Option<Misfit> {
        (self.misfit)(codes, axis)
    }

    /// The grid of codes that are made for it, where a scheme has this one.
    pub fn grid(&self, asked: GridKind) -> GridKind {
        self.grid.unwrap_or(asked)
    }

    /// The type in which it keeps scales of this type.
    pub fn scale(&self, asked: ScaleType) -> ScaleType {
        self.scale.unwrap_or(asked)
    }

    /// How activations are rounded that are to be rounded around zero.
    pub(crate) fn symmetric(&self) -> ActivationRounding {
        self.symmetric
    }
}
