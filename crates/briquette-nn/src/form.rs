//! Stores the quantization of an attached parameter as numbers in a record.

use briquette_core::encoded::ScaleType;
use briquette_core::{Grid, GridKind, Grouping, OutputAxis};
use briquette_methods::quant::{Activations, Scheme};

/// Axes that can count outputs, by number.
const AXES: [OutputAxis; 3] = [OutputAxis::First, OutputAxis::Last, OutputAxis::Second];

/// More than the largest number of a form with scales of f32 or f16.
const N_FORMS: i64 = 200;

/// Returns the number of an axis for records.
pub(crate) fn number_of(axis: OutputAxis) -> i64 {
    AXES.iter().position(|known| *known == axis).unwrap_or(0) as i64
}

/// Inverts [`number_of`].
pub(crate) fn axis_of(number: i64) -> Option<OutputAxis> {
    AXES.get(usize::try_from(number).ok()?).copied()
}

/// A quantization without its scales: grid, grouping and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) grid: Grid,
    pub(crate) grouping: Grouping,
    pub(crate) scale: ScaleType,
    pub(crate) activations: Activations,
}

impl Form {
    pub(crate) fn of(scheme: &Scheme) -> Self {
        let weights = scheme.weights;
        let (grid, grouping, scale) = (weights.grid, weights.grouping, weights.scale);
        Self { grid, grouping, scale, activations: scheme.activations }
    }

    /// Encodes a form as numbers: bits, grid, grouping, group size, scale type and activations (zeros without a
    /// grid), then the step of the last decision and the output axis.
    ///
    /// Zeros are appended so that different forms have different lengths. Forms that differ only in grouping
    /// differ in the number of scales instead. burn refuses a record with other shapes, so it refuses a record
    /// of another form.
    pub(crate) fn to_numbers(form: Option<&Self>, axis: OutputAxis, step: usize) -> Vec<i64> {
        let (step, axis) = (i64::try_from(step).unwrap_or(i64::MAX), number_of(axis));
        let Some(form) = form else { return vec![0, 0, 0, 0, 0, 0, step, axis] };
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
        let scale = match form.scale {
            ScaleType::F32 => 0,
            ScaleType::F16 => 1,
            ScaleType::Log8 => 2,
        };
        let activations = match form.activations {
            // Grids of static activations belong to files.
            Activations::Float | Activations::Static => 0,
            Activations::DynamicSymmetric => 1,
            Activations::DynamicAsymmetric => 2,
        };
        let bits = i64::from(form.grid.n_bits());
        let n_more = 1 + ((bits * 3 + kind) * 2 + scale % 2) * 3 + activations + N_FORMS * (scale / 2);
        let mut numbers = vec![bits, kind, grouping, size, scale, activations, step, axis];
        numbers.resize(numbers.len() + n_more as usize, 0);
        numbers
    }

    /// Returns the stored step.
    pub(crate) fn step(numbers: &[i64]) -> usize {
        numbers.get(6).and_then(|&step| usize::try_from(step).ok()).unwrap_or(0)
    }

    /// Returns the stored output axis.
    pub(crate) fn axis(numbers: &[i64]) -> OutputAxis {
        axis_of(numbers.get(7).copied().unwrap_or(0)).unwrap_or_default()
    }

    /// Decodes a form; `None` for zeros and for invalid numbers.
    pub(crate) fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let &[bits, kind, grouping, size, scale, activations, ..] = numbers else { return None };
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
        let scale = match scale {
            0 => ScaleType::F32,
            1 => ScaleType::F16,
            _ => ScaleType::Log8,
        };
        Some(Self { grid: Grid::new(u8::try_from(bits).ok()?, kind)?, grouping, scale, activations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_round_trips_and_has_its_own_length() {
        let mut lengths = vec![Form::to_numbers(None, OutputAxis::First, 0).len()];
        for name in [
            "int8",
            "int8-asym",
            "int4",
            "int4-g32",
            "int3-asym",
            "int8-dynamic",
            "int8-dynamic-sym",
            "int4-g32-dynamic",
        ] {
            let form = Form::of(&name.parse().unwrap());
            let with = |scale| Form { scale, ..form };
            for form in [form, with(ScaleType::F16), with(ScaleType::Log8)] {
                let numbers = Form::to_numbers(Some(&form), OutputAxis::Second, 77);
                assert_eq!((Form::step(&numbers), Form::axis(&numbers)), (77, OutputAxis::Second));
                assert_eq!(Form::from_numbers(&numbers), Some(form), "{name}");
                lengths.push(numbers.len());
            }
        }
        assert_eq!(Form::from_numbers(&Form::to_numbers(None, OutputAxis::Last, 9)), None);
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths.len(), 1 + 3 * 7, "int4-g32 is as long as int4");
    }
}
