//! Changes of the values of a tensor that keep its shape, computed while it is read.

use briquette_core::{DType, Error, Result, rows};
use std::collections::BTreeMap;

/// A change of each element: `(w + offset) · product of factors - offset + added`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ValueEdit {
    /// The factor of each index along an axis.
    pub(super) factors: BTreeMap<usize, Vec<f64>>,
    /// Added to the weight when the network runs.
    pub(super) offset: f64,
    /// Added to each element of a vector, after the factors; empty if nothing is.
    pub(super) added: Vec<f64>,
}

impl ValueEdit {
    /// Multiplies the elements at each index along an axis.
    pub(super) fn multiply(&mut self, axis: usize, factors: &[f64]) {
        let own = self.factors.entry(axis).or_insert_with(|| vec![1.0; factors.len()]);
        own.iter_mut().zip(factors).for_each(|(own, factor)| *own *= factor);
    }

    /// Changes consecutive elements of a tensor, from the element `start` on.
    pub(super) fn apply(&self, shape: &[usize], start: usize, values: &mut [f32]) {
        let axes: Vec<(usize, &[f64])> = self
            .factors
            .iter()
            .map(|(axis, factors)| (shape[axis + 1..].iter().product::<usize>().max(1), factors.as_slice()))
            .collect();
        for (index, value) in values.iter_mut().enumerate() {
            let at = start + index;
            let factor: f64 = axes.iter().map(|(inner, factors)| factors[at / inner % factors.len()]).product();
            let added = self.added.get(at).copied().unwrap_or(0.0);
            *value = ((f64::from(*value) + self.offset) * factor - self.offset + added) as f32;
        }
    }

    /// Changes consecutive elements that are stored as `dtype`.
    ///
    /// # Errors
    /// Refused: `dtype` cannot store a changed value.
    pub(super) fn apply_to_bytes(&self, shape: &[usize], dtype: DType, start: usize, bytes: &mut [u8]) -> Result<()> {
        change_bytes(dtype, start, bytes, |values| self.apply(shape, start, values))
    }
}

/// Changes elements that are stored as `dtype`; `start` is the index of the first.
///
/// # Errors
/// Refused: `dtype` cannot store a changed value.
pub(super) fn change_bytes(
    dtype: DType,
    start: usize,
    bytes: &mut [u8],
    change: impl FnOnce(&mut [f32]),
) -> Result<()> {
    let mut values = vec![0.0; bytes.len() / (dtype.n_bits() / 8)];
    rows::to_f32(bytes, dtype, &mut values);
    let was_finite: Vec<bool> = values.iter().map(|value| value.is_finite()).collect();
    change(&mut values);
    let is_lost = |(value, was_finite): (&f32, &bool)| *was_finite && !rows::fits(*value, dtype);
    if let Some(at) = values.iter().zip(&was_finite).position(is_lost) {
        let message = format!("element {} becomes {:e}, which {dtype} cannot store", start + at, values[at]);
        return Err(Error::refused(format!("{message}; exclude the tensor, or use a model in f32")));
    }
    rows::from_f32(&values, dtype, bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_a_tensor_is_changed_alike() {
        let mut edit = ValueEdit { offset: 1.0, ..ValueEdit::default() };
        edit.multiply(0, &[2.0, 3.0]);
        edit.multiply(2, &[1.0, 10.0]);
        edit.multiply(0, &[0.5, 1.0]);
        let shape = [2, 3, 2];
        let mut whole: Vec<f32> = (0..12).map(|at| at as f32).collect();
        let original = whole.clone();
        edit.apply(&shape, 0, &mut whole);
        assert_eq!(whole[..4], [0.0, 19.0, 2.0, 39.0]);
        assert_eq!(whole[6..8], [20.0, 239.0]);
        for start in 0..12 {
            let mut part = original[start..].to_vec();
            edit.apply(&shape, start, &mut part);
            assert_eq!(part, whole[start..]);
        }
    }

    #[test]
    fn values_beyond_the_type_are_refused() {
        let mut edit = ValueEdit::default();
        edit.multiply(0, &[1e4, 1.0]);
        let mut bytes = vec![0; 4];
        rows::from_f32(&[100.0, 100.0], DType::F16, &mut bytes);
        let error = edit.apply_to_bytes(&[2], DType::F16, 0, &mut bytes).unwrap_err();
        assert!(error.message.contains("element 0 becomes 1e6, which"), "{error}");
        edit.apply_to_bytes(&[2], DType::F16, 1, &mut bytes[2..]).unwrap();
    }
}
