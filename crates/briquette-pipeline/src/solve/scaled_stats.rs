//! Statistics of inputs that are multiplied by the scales of a layer's columns.

use briquette_core::{ColumnScales, InputStats};
use std::sync::Arc;

/// The scaled statistics of the last layer: the layers after it often have the same inputs.
#[derive(Default)]
pub(super) struct ScaledStats {
    last: Option<ScaledOnce>,
}

/// The scaled statistics of some inputs.
struct ScaledOnce {
    /// The Gram matrix before.
    gram: Option<Arc<Vec<f64>>>,
    columns: ColumnScales,
    stats: InputStats,
}

impl ScaledOnce {
    fn is_of(&self, stats: &InputStats, columns: &ColumnScales) -> bool {
        let is_same = match (&self.gram, &stats.gram) {
            (Some(known), Some(gram)) => Arc::ptr_eq(known, gram),
            _ => false,
        };
        is_same && self.columns == *columns
    }
}

impl ScaledStats {
    /// Returns the statistics of inputs `x · c`, with `c` the scales of columns.
    pub(super) fn of<'s>(&'s mut self, stats: &InputStats, columns: &ColumnScales) -> &'s InputStats {
        self.last = self.last.take().filter(|last| last.is_of(stats, columns));
        let make = || ScaledOnce {
            gram: stats.gram.clone(),
            columns: columns.clone(),
            stats: scaled(stats, columns.values()),
        };
        &self.last.get_or_insert_with(make).stats
    }
}

/// Returns the statistics of inputs times one scale each. Channel groups have the same scales.
fn scaled(stats: &InputStats, scales: &[f32]) -> InputStats {
    let n_cols = scales.len().max(1);
    let scale = |at: usize| f64::from(scales[at % n_cols]);
    let sums = |values: &[f64], power: i32| -> Vec<f64> {
        values.iter().enumerate().map(|(at, value)| value * scale(at).powi(power)).collect()
    };
    let gram = stats.gram.as_ref().map(|gram| {
        let times = |(at, value): (usize, &f64)| value * scale(at / n_cols) * scale(at);
        Arc::new(gram.iter().enumerate().map(times).collect())
    });
    InputStats {
        count: stats.count,
        sum: sums(&stats.sum, 1),
        sum_squares: sums(&stats.sum_squares, 2),
        sum_magnitudes: sums(&stats.sum_magnitudes, 1),
        max: stats.max.iter().enumerate().map(|(at, max)| max * scales[at % n_cols]).collect(),
        // A weight times its gradient does not depend on the scale.
        importance: stats.importance.clone(),
        gram,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_scaled_inputs_and_equal_ones_are_shared() {
        let mut stats = InputStats::empty(2, true);
        (stats.count, stats.sum, stats.sum_squares, stats.max) = (2, vec![3.0, 1.0], vec![5.0, 1.0], vec![2.0, 1.0]);
        stats.gram = Some(Arc::new(vec![5.0, 2.0, 2.0, 1.0]));
        let columns = ColumnScales::nearest([2.0, 0.5]);
        let mut known = ScaledStats::default();
        let first = known.of(&stats, &columns).clone();
        assert_eq!(
            (first.sum.as_slice(), first.sum_squares.as_slice()),
            ([6.0, 0.5].as_slice(), [20.0, 0.25].as_slice())
        );
        assert_eq!(
            (first.max.as_slice(), first.gram.as_ref().unwrap().as_slice()),
            ([4.0, 0.5].as_slice(), [20.0, 2.0, 2.0, 0.25].as_slice())
        );
        let again = known.of(&stats, &columns).gram.clone().unwrap();
        assert!(Arc::ptr_eq(&again, first.gram.as_ref().unwrap()));
        let other = known.of(&stats, &ColumnScales::nearest([1.0, 1.0])).gram.clone().unwrap();
        assert_eq!(other.as_slice(), [5.0, 2.0, 2.0, 1.0]);
    }
}
