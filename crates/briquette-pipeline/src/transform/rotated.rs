//! Rotations of the axes of a tensor, computed while it is read.

use super::edit::{ValueEdit, change_bytes};
use briquette_core::{DType, Result};
use briquette_methods::rotation::ChannelRotation;
use std::ops::Range;
use std::sync::Arc;

/// A change of each element, and then rotations of some axes.
#[derive(Debug, Clone, Default)]
pub(super) struct Rotated {
    /// The change before the rotations.
    edit: ValueEdit,
    turns: Vec<Turn>,
}

/// A rotation of groups of elements along an axis.
#[derive(Debug, Clone)]
struct Turn {
    axis: usize,
    groups: Vec<Vec<usize>>,
    rotation: Arc<ChannelRotation>,
}

impl Rotated {
    /// Rotates groups of elements along an axis, after all changes so far.
    pub(super) fn turn(&mut self, axis: usize, groups: Vec<Vec<usize>>, rotation: &Arc<ChannelRotation>) {
        self.turns.push(Turn { axis, groups, rotation: Arc::clone(rotation) });
    }

    /// Returns the same rotations after a change of each element.
    pub(super) fn after(&self, edit: ValueEdit) -> Self {
        Self { edit, turns: self.turns.clone() }
    }

    /// Returns whether each row of the last axis depends on no other row.
    pub(super) fn needs_rows_alone(&self, shape: &[usize]) -> bool {
        self.turns.iter().all(|turn| turn.axis + 1 == shape.len())
    }

    /// Returns the elements that the wanted ones depend on; the tensor has `n`.
    pub(super) fn needed(&self, shape: &[usize], wanted: Range<usize>, n: usize) -> Range<usize> {
        if !self.needs_rows_alone(shape) {
            return 0..n;
        }
        let row = shape.last().copied().unwrap_or(1).max(1);
        wanted.start / row * row..wanted.end.next_multiple_of(row).min(n)
    }

    /// Changes the elements that [`needed`](Self::needed) returned, stored as `dtype`.
    ///
    /// # Errors
    /// Refused: `dtype` cannot store a changed value.
    pub(super) fn apply_to_bytes(&self, shape: &[usize], dtype: DType, start: usize, bytes: &mut [u8]) -> Result<()> {
        change_bytes(dtype, start, bytes, |values| {
            self.edit.apply(shape, start, values);
            for turn in &self.turns {
                turn.apply(shape, values);
            }
        })
    }
}

impl Turn {
    /// Rotates whole slices of the axis.
    fn apply(&self, shape: &[usize], values: &mut [f32]) {
        let inner: usize = shape[self.axis + 1..].iter().product();
        let mut channels = vec![0.0; self.rotation.n()];
        for slice in values.chunks_exact_mut(shape[self.axis] * inner) {
            for at in 0..inner {
                for group in &self.groups {
                    for (channel, element) in channels.iter_mut().zip(group) {
                        *channel = f64::from(slice[element * inner + at]);
                    }
                    self.rotation.apply(&mut channels);
                    for (channel, element) in channels.iter().zip(group) {
                        slice[element * inner + at] = *channel as f32;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::rows;

    fn values(bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / 4];
        rows::to_f32(bytes, DType::F32, &mut values);
        values
    }

    fn stored(n: usize) -> Vec<u8> {
        let mut bytes = vec![0; 4 * n];
        rows::from_f32(&(0..n).map(|at| at as f32 - 5.0).collect::<Vec<_>>(), DType::F32, &mut bytes);
        bytes
    }

    #[test]
    fn any_axis_is_rotated_in_its_groups_after_the_factors() {
        let (shape, rotation) = ([2, 4, 3], Arc::new(ChannelRotation::new(2, 3)));
        let mut rotated = Rotated::default();
        rotated.edit.multiply(1, &[1.0, 2.0, 3.0, 4.0]);
        rotated.turn(1, vec![vec![0, 2], vec![3, 1]], &rotation);
        let mut bytes = stored(24);
        let before = values(&bytes);
        rotated.apply_to_bytes(&shape, DType::F32, 0, &mut bytes).unwrap();
        for (outer, inner) in (0..2).flat_map(|outer| (0..3).map(move |inner| (outer, inner))) {
            let at = |element: usize| outer * 12 + element * 3 + inner;
            for group in [[0, 2], [3, 1]] {
                let mut expected = group.map(|element| f64::from(before[at(element)]) * (element + 1) as f64);
                rotation.apply(&mut expected);
                let found = group.map(|element| f64::from(values(&bytes)[at(element)]));
                assert!(expected.iter().zip(found).all(|(a, b)| (a - b).abs() < 1e-5), "{expected:?} {found:?}");
            }
        }
        assert_eq!(rotated.needed(&shape, 5..6, 24), 0..24);
    }

    #[test]
    fn ranges_of_a_tensor_with_rotated_rows_equal_the_whole() {
        let (shape, rotation) = ([4, 6], Arc::new(ChannelRotation::new(6, 1)));
        let mut rotated = Rotated::default();
        rotated.edit.multiply(0, &[1.0, 2.0, 3.0, 4.0]);
        rotated.turn(1, vec![(0..6).collect()], &rotation);
        let mut whole = stored(24);
        rotated.apply_to_bytes(&shape, DType::F32, 0, &mut whole).unwrap();
        for (start, end) in [(0, 1), (5, 8), (6, 12), (23, 24), (3, 24)] {
            let needed = rotated.needed(&shape, start..end, 24);
            assert!(needed.start <= start && needed.end >= end && needed.len() % 6 == 0);
            let mut part = stored(24)[4 * needed.start..4 * needed.end].to_vec();
            rotated.apply_to_bytes(&shape, DType::F32, needed.start, &mut part).unwrap();
            assert_eq!(part, whole[4 * needed.start..4 * needed.end]);
        }
    }
}
