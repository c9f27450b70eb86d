//! Weight norm: a layer with weight `w = g·v/‖v‖`, with directions `v` and one length `g` per norm.
//!
//! Directions are scored by the magnitude of `w`. The largest weight of each norm is kept, because a norm of 0
//! would make `w` 0/0. Each length is multiplied by `‖m∘v‖/‖v‖`, where `m` is the mask, so that the kept
//! weights of `w` do not change. Source: Salimans and Kingma, "Weight Normalization", 2016, eq. 2.

use briquette_core::{OutputAxis, Rows, Shape};
use std::ops::Range;

/// Directions that are pruned or quantized, and their lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightNorm {
    /// The index of the lengths in the plan.
    pub lengths: usize,
    /// The directions that share a length.
    pub groups: NormGroups,
    /// The norms measured by the survey; empty before it.
    pub measured: MeasuredNorms,
}

/// The directions that share a norm: those with the same index on the axis of the lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormGroups {
    /// Consecutive weights of the row view that share a norm.
    stride: usize,
    /// Number of norms.
    n: usize,
}

/// The norms of directions before pruning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeasuredNorms {
    /// The lengths `g`; empty if no weight is pruned.
    pub(crate) lengths: Vec<f32>,
    /// `‖v‖²` of each norm.
    pub(crate) squares: Vec<f64>,
    /// The position of the largest weight of each norm, ascending.
    largest: Vec<usize>,
}

/// Sums over the directions of a tensor during encoding.
#[derive(Debug, Clone, Default)]
pub(crate) struct NormSums {
    /// `‖m∘v‖²` of each norm.
    pub(crate) squares: Vec<f64>,
    /// Whether any stored weight of a norm is not 0.
    pub(crate) is_nonzero: Vec<bool>,
}

/// Measures norms while directions are read in order.
#[derive(Debug)]
pub(crate) struct NormMeter {
    groups: NormGroups,
    squares: Vec<f64>,
    /// The largest magnitude of each norm, and its position.
    largest: Vec<Option<(f32, usize)>>,
}

impl NormGroups {
    /// Returns the norms of directions with these lengths; `None` if the shapes do not match.
    ///
    /// Lengths have the extent of the directions on one axis and 1 on all others, or only one element for all
    /// directions.
    pub fn of(directions: &Shape, rows: Rows, lengths: &Shape) -> Option<Self> {
        let (own, n) = (directions.0.as_slice(), directions.0.iter().product::<usize>());
        if own.len() < 2 || n == 0 {
            return None;
        }
        let Some(axis) = lengths.0.iter().position(|&n| n != 1) else {
            return (lengths.0.len() <= own.len()).then_some(Self { stride: n, n: 1 });
        };
        // A vector of lengths belongs to the first axis.
        let has_rank = lengths.0.len() == own.len() || lengths.0.len() == 1;
        let is_only = lengths.0.iter().filter(|&&n| n != 1).count() == 1;
        if !has_rank || !is_only || lengths.0[axis] != own[axis] {
            return None;
        }
        let stride = match (rows.axis.is_turned(), axis) {
            (true, 0) => rows.run,
            (true, 1) => rows.n_cols,
            _ if rows.axis == OutputAxis::Stacked || !rows.axis.is_turned() || axis > 1 => {
                own[axis + 1..].iter().product()
            }
            _ => return None,
        };
        Some(Self { stride: stride.max(1), n: own[axis] })
    }

    /// Returns the number of norms.
    pub fn n(self) -> usize {
        self.n
    }

    /// Calls `each` with the norm of every run of neighbours in a slice that begins at position `first` of the
    /// row view.
    fn for_each_run(self, first: usize, len: usize, mut each: impl FnMut(usize, Range<usize>)) {
        let mut start = 0;
        while start < len {
            let place = first + start;
            let end = (start + self.stride - place % self.stride).min(len);
            each(place / self.stride % self.n, start..end);
            start = end;
        }
    }
}

impl WeightNorm {
    /// Creates a norm that is not measured yet.
    pub fn new(lengths: usize, groups: NormGroups) -> Self {
        Self { lengths, groups, measured: MeasuredNorms::default() }
    }

    /// Appends the scores of `w`, computed from those of `v`, as both are proportional to the magnitude.
    ///
    /// Before the survey they are equal.
    pub(crate) fn scale(&self, scores: &[f32], first: usize, out: &mut Vec<f32>) {
        let MeasuredNorms { lengths, squares, .. } = &self.measured;
        self.groups.for_each_run(first, scores.len(), |norm, run| {
            let factor = match (lengths.get(norm), squares.get(norm)) {
                (Some(&length), Some(&square)) if square > 0.0 => f64::from(length.abs()) / square.sqrt(),
                _ => 1.0,
            };
            out.extend(scores[run].iter().map(|&score| (f64::from(score) * factor) as f32));
        });
    }

    /// Gives the largest weight of each norm the highest possible score.
    pub(crate) fn keep_largest(&self, first: usize, scores: &mut [f32]) {
        let largest = &self.measured.largest;
        let start = largest.partition_point(|&place| place < first);
        let end = largest.partition_point(|&place| place < first + scores.len());
        largest[start..end].iter().for_each(|&place| scores[place - first] = f32::MAX);
    }
}

impl NormMeter {
    pub(crate) fn new(groups: NormGroups) -> Self {
        Self { groups, squares: vec![0.0; groups.n], largest: vec![None; groups.n] }
    }

    /// Adds directions that begin at this position.
    pub(crate) fn add(&mut self, first: usize, values: &[f32]) {
        let Self { groups, squares, largest } = self;
        groups.for_each_run(first, values.len(), |norm, run| {
            for place in run {
                let size = values[place].abs();
                squares[norm] += f64::from(size) * f64::from(size);
                if largest[norm].is_none_or(|(most, _)| size > most) {
                    largest[norm] = Some((size, first + place));
                }
            }
        });
    }

    pub(crate) fn finish(self, lengths: Vec<f32>) -> MeasuredNorms {
        let mut largest: Vec<usize> = self.largest.into_iter().flatten().map(|(_, place)| place).collect();
        largest.sort_unstable();
        MeasuredNorms { lengths, squares: self.squares, largest }
    }
}

impl NormSums {
    /// Adds directions that begin at this position: the kept values, and the stored ones.
    pub(crate) fn push(&mut self, groups: NormGroups, first: usize, kept: &[f32], stored: &[f32]) {
        self.squares.resize(groups.n, 0.0);
        self.is_nonzero.resize(groups.n, false);
        groups.for_each_run(first, kept.len(), |norm, run| {
            let square = |&value: &f32| f64::from(value) * f64::from(value);
            self.squares[norm] += kept[run.clone()].iter().map(square).sum::<f64>();
            self.is_nonzero[norm] |= stored[run].iter().any(|&value| value != 0.0);
        });
    }

    /// Adds the sums of another part of the tensor.
    pub(crate) fn merge(&mut self, other: Self) {
        if self.squares.is_empty() {
            *self = other;
            return;
        }
        self.squares.iter_mut().zip(other.squares).for_each(|(sum, other)| *sum += other);
        self.is_nonzero.iter_mut().zip(other.is_nonzero).for_each(|(is, other)| *is |= other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the norm of every weight of a tensor in its own order, from its position on one axis.
    fn norms_along(shape: &[usize], axis: usize) -> Vec<usize> {
        let stride: usize = shape[axis + 1..].iter().product();
        (0..shape.iter().product()).map(|place| place / stride % shape[axis]).collect()
    }

    /// Converts norms to the order of rows.
    fn turned(own: &[usize], rows: Rows) -> Vec<usize> {
        let own: Vec<u8> = own.iter().map(|&norm| norm as u8).collect();
        let mut turned = own.clone();
        if rows.axis.is_turned() {
            rows.turn(&own, &mut turned, 1);
        }
        turned.into_iter().map(usize::from).collect()
    }

    #[test]
    fn weights_share_a_norm_by_their_index_on_the_axis_of_the_lengths() {
        for shape in [vec![4, 3], vec![4, 3, 5], vec![2, 3, 4, 5]] {
            for axis in 0..shape.len() {
                for output_axis in [OutputAxis::First, OutputAxis::Second, OutputAxis::Last] {
                    let (directions, mut lengths) = (Shape(shape.clone()), vec![1; shape.len()]);
                    lengths[axis] = shape[axis];
                    let rows = Rows::of(&directions, output_axis);
                    let groups = NormGroups::of(&directions, rows, &Shape(lengths)).unwrap();
                    let expected = turned(&norms_along(&shape, axis), rows);
                    for first in [0, 1, 7] {
                        let mut found = Vec::new();
                        groups.for_each_run(first, expected.len() - first, |norm, run| {
                            found.extend(run.map(|_| norm));
                        });
                        assert_eq!(found, expected[first..], "{shape:?} {axis} {output_axis:?} from {first}");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_of_other_shapes_match_no_directions() {
        let of = |directions: &[usize], lengths: &[usize]| {
            let directions = Shape(directions.to_vec());
            let rows = Rows::of(&directions, OutputAxis::First);
            NormGroups::of(&directions, rows, &Shape(lengths.to_vec())).map(NormGroups::n)
        };
        assert_eq!(
            (of(&[4, 3, 5], &[4]), of(&[4, 3, 5], &[]), of(&[4, 3, 5], &[1, 1, 1])),
            (Some(4), Some(1), Some(1))
        );
        for lengths in [&[3][..], &[4, 3, 1], &[4, 1], &[3, 1, 1], &[1, 1, 1, 1]] {
            assert_eq!(of(&[4, 3, 5], lengths), None, "{lengths:?}");
        }
        assert_eq!((of(&[4], &[4]), of(&[0, 3], &[1, 3])), (None, None));
    }

    #[test]
    fn scores_are_scaled_to_layer_weights_and_the_largest_of_each_norm_is_kept() {
        let groups = NormGroups { stride: 2, n: 2 };
        let mut meter = NormMeter::new(groups);
        meter.add(0, &[3.0, -4.0]);
        meter.add(2, &[0.6, 0.8]);
        let norm = WeightNorm { lengths: 0, groups, measured: meter.finish(vec![5.0, -10.0]) };
        let mut scores = Vec::new();
        norm.scale(&[3.0, 4.0, 0.6, 0.8], 0, &mut scores);
        scores.iter().zip([3.0, 4.0, 6.0, 8.0]).for_each(|(score, expected)| assert!((score - expected).abs() < 1e-5));
        norm.keep_largest(0, &mut scores);
        assert_eq!((scores[1], scores[3]), (f32::MAX, f32::MAX));
        let mut tail = vec![0.0; 2];
        norm.keep_largest(2, &mut tail);
        assert_eq!(tail, [0.0, f32::MAX]);
    }

    #[test]
    fn sums_of_parts_equal_those_of_the_whole() {
        let (groups, values) = (NormGroups { stride: 3, n: 2 }, [1.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
        let (mut whole, mut parts) = (NormSums::default(), NormSums::default());
        whole.push(groups, 0, &values, &values);
        for (first, range) in [(0, 0..2), (2, 2..6)] {
            let mut part = NormSums::default();
            part.push(groups, first, &values[range.clone()], &values[range]);
            parts.merge(part);
        }
        assert_eq!((parts.squares.as_slice(), parts.is_nonzero.as_slice()), (&[5.0, 0.0][..], &[true, false][..]));
        assert_eq!((whole.squares, whole.is_nonzero), (parts.squares, parts.is_nonzero));
    }
}
