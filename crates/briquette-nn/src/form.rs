//! How an attached parameter is rounded, as numbers that a record can keep.

use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{Grid, GridKind, Grouping};
use briquette_quant::{Activations, Scheme};

/// The static side of a quantization: everything but its scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) grid: Grid,
    pub(crate) grouping: Grouping,
    pub(crate) scale: ScaleType,
    pub(crate) activations: Activations,
}

/// Numbers that stand for a form: bits, grid, grouping, group size, scale type, activations.
pub(crate) const N_NUMBERS: usize = 6;

impl Form {
    pub(crate) fn of(scheme: &Scheme) -> Self {
        let weights = scheme.weights;
        let (grid, grouping, scale) = (weights.grid, weights.grouping, weights.scale);
        Self { grid, grouping, scale, activations: scheme.activations }
    }

    pub(crate) fn codes(&self) -> Codes {
        Codes { bits: self.grid.n_bits(), grid: self.grid.kind(), grouping: self.grouping, scale: self.scale }
    }

    /// All zeros where nothing is rounded.
    pub(crate) fn to_numbers(form: Option<&Self>) -> [i64; N_NUMBERS] {
        let Some(form) = form else { return [0; N_NUMBERS] };
        let kind = match form.grid.kind() {
            GridKind::Symmetric => 0,
            GridKind::SymmetricFull => 1,
            GridKind::Asymmetric => 2,
        };
        let (grouping, size) = match form.grouping {
            Grouping::Tensor => (0, 0),
            Grouping::Row => (1, 0),
            Grouping::Group(size) => (2, size as i64),
        };
        let scale = i64::from(form.scale == ScaleType::F16);
        let activations = match form.activations {
            Activations::Float => 0,
            Activations::DynamicSymmetric => 1,
            Activations::DynamicAsymmetric => 2,
        };
        [i64::from(form.grid.n_bits()), kind, grouping, size, scale, activations]
    }

    /// `None` for zeros, and for numbers that stand for no form.
    pub(crate) fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let &[bits, kind, grouping, size, scale, activations] = numbers else { return None };
        let kind = match kind {
            0 => GridKind::Symmetric,
            1 => GridKind::SymmetricFull,
            _ => GridKind::Asymmetric,
        };
        let grouping = match grouping {
            0 => Grouping::Tensor,
            1 => Grouping::Row,
            _ => Grouping::Group(usize::try_from(size).ok().filter(|&size| size > 0)?),
        };
        let activations = match activations {
            0 => Activations::Float,
            1 => Activations::DynamicSymmetric,
            _ => Activations::DynamicAsymmetric,
        };
        let scale = if scale == 1 { ScaleType::F16 } else { ScaleType::F32 };
        Some(Self { grid: Grid::new(u8::try_from(bits).ok()?, kind)?, grouping, scale, activations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_survives_as_numbers() {
        for name in ["int8", "int4-g32", "int3-asym", "int8-dynamic", "int8-dynamic-sym"] {
            let form = Form::of(&name.parse().unwrap());
            assert_eq!(Form::from_numbers(&Form::to_numbers(Some(&form))), Some(form), "{name}");
        }
        assert_eq!(Form::from_numbers(&Form::to_numbers(None)), None);
    }
}
