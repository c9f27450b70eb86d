//! Layers that read one value, and the statistics of the value.

use crate::quant::unseen::fill_unseen;
use briquette_core::InputStats;

/// Layers that read one value.
#[derive(Debug, Clone, Copy)]
pub struct ScaledColumns<'a> {
    /// The weights of each layer, as rows `[out, in]`.
    pub layers: &'a [Vec<f32>],
    /// The statistics of the inputs.
    pub stats: &'a InputStats,
    /// The unit of each column. Columns of one unit share a scale.
    pub units: &'a [usize],
    /// The number of units.
    pub n_units: usize,
}

impl ScaledColumns<'_> {
    /// Returns the number of columns.
    pub fn n_columns(&self) -> usize {
        self.units.len()
    }

    /// Returns the largest of the values of each unit.
    pub(super) fn largest(&self, of_column: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut found = vec![0.0_f64; self.n_units];
        for (column, &unit) in self.units.iter().enumerate() {
            found[unit] = found[unit].max(of_column(column));
        }
        found
    }

    /// Returns the scale of each column.
    pub(super) fn expanded(&self, scales: &[f64]) -> Vec<f64> {
        self.units.iter().map(|&unit| scales[unit]).collect()
    }

    /// Returns the largest magnitude of the inputs of each unit.
    pub fn input_ranges(&self) -> Vec<f64> {
        self.largest(|column| f64::from(self.stats.max[column]))
    }

    /// Returns the largest magnitude of the weights of each unit.
    pub fn weight_ranges(&self) -> Vec<f64> {
        let mut of_columns = vec![0.0_f32; self.n_columns()];
        for row in self.layers.iter().flat_map(|layer| layer.chunks_exact(self.n_columns())) {
            of_columns.iter_mut().zip(row).for_each(|(most, weight)| *most = most.max(weight.abs()));
        }
        self.largest(|column| f64::from(of_columns[column]))
    }

    /// Returns the root mean square of the inputs of each unit.
    ///
    /// Inputs that were 0 throughout may be used later, so they count as the mean of the others.
    pub(super) fn input_roots(&self) -> Vec<f64> {
        let count = self.stats.count.max(1) as f64;
        let mut roots = self.roots(|column| self.stats.sum_squares[column] / count);
        fill_unseen(&mut roots);
        roots
    }

    /// Returns the root mean square of the weights of each unit.
    pub(super) fn weight_roots(&self) -> Vec<f64> {
        let (mut sums, mut n_rows) = (vec![0.0_f64; self.n_columns()], 0.0_f64);
        for row in self.layers.iter().flat_map(|layer| layer.chunks_exact(self.n_columns())) {
            sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += f64::from(*weight).powi(2));
            n_rows += 1.0;
        }
        self.roots(|column| sums[column] / n_rows.max(1.0))
    }

    /// Returns the root of the mean square of each unit.
    fn roots(&self, square_of: impl Fn(usize) -> f64) -> Vec<f64> {
        let (mut sums, mut n) = (vec![0.0; self.n_units], vec![0.0_f64; self.n_units]);
        for (column, &unit) in self.units.iter().enumerate() {
            sums[unit] += square_of(column);
            n[unit] += 1.0;
        }
        sums.iter().zip(n).map(|(sum, n)| (sum / n.max(1.0)).sqrt()).collect()
    }

    /// Returns the mean magnitude of the inputs of each unit, or their root mean square where magnitudes were not gathered.
    ///
    /// Inputs that were 0 throughout may be used later, so they count as the mean of the others.
    pub fn input_sizes(&self) -> Vec<f64> {
        let count = self.stats.count.max(1) as f64;
        let has_magnitudes = self.stats.sum_magnitudes.len() == self.n_columns();
        let sums_of = if has_magnitudes { &self.stats.sum_magnitudes } else { &self.stats.sum_squares };
        let (mut sums, mut n) = (vec![0.0; self.n_units], vec![0.0_f64; self.n_units]);
        for (&unit, sum) in self.units.iter().zip(sums_of) {
            sums[unit] += sum / count;
            n[unit] += 1.0;
        }
        let means = sums.iter().zip(&n).map(|(sum, n)| sum / n.max(1.0));
        let mut sizes: Vec<f64> = means.map(|mean| if has_magnitudes { mean } else { mean.sqrt() }).collect();
        fill_unseen(&mut sizes);
        sizes
    }
}
