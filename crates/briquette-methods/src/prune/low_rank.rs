//! Low-rank approximation: a matrix as the product of two thinner ones, from its largest singular values.

mod symmetric;

use crate::prune::Ratio;
use ndarray::{Array2, ArrayView2, s};
use symmetric::eigen;

/// How the rank of an approximation is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rank {
    /// The smallest rank that keeps at least this share of the sum of squared singular values.
    Energy(Ratio),
    /// The largest rank whose two factors have at most this share of the matrix's elements.
    Bytes(Ratio),
}

impl Rank {
    /// Returns the rank for a matrix `[n_rows, n_cols]`. `None` if the factors would not be smaller than the
    /// matrix.
    ///
    /// `energies` are the squared singular values of the matrix, largest first.
    pub fn of(self, energies: &[f64], n_rows: usize, n_cols: usize) -> Option<usize> {
        let rank = match self {
            Self::Energy(share) => {
                let total: f64 = energies.iter().sum();
                let sums = energies.iter().scan(0.0, |sum, energy| {
                    *sum += energy;
                    Some(*sum)
                });
                1 + sums.take_while(|sum| *sum < share.get() * total).count()
            }
            Self::Bytes(share) => {
                let n_elements = share.get() * n_rows as f64 * n_cols as f64;
                (n_elements / (n_rows + n_cols).max(1) as f64) as usize
            }
        };
        (rank > 0 && rank * (n_rows + n_cols) < n_rows * n_cols).then_some(rank)
    }
}

/// The singular values of a matrix, and the singular vectors of its shorter side.
#[derive(Debug, Clone)]
pub struct Spectrum {
    /// `σ²`, largest first, `min(n_rows, n_cols)` values.
    pub energies: Vec<f64>,
    matrix: Array2<f64>,
    /// One vector per row, in the order of `energies`.
    vectors: Array2<f64>,
}

/// The factors of `W ≈ up · down`.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    /// The number of columns of `up` and of rows of `down`.
    pub rank: usize,
    /// `[n_rows, rank]`, row-major.
    pub up: Vec<f32>,
    /// `[rank, n_cols]`, row-major.
    pub down: Vec<f32>,
    /// The kept share of the sum of squared singular values.
    pub energy: f64,
}

impl Spectrum {
    /// Computes the singular values of `weights`, `[n_rows, n_cols]`, in f64.
    ///
    /// `W = U Σ Vᵀ` follows from the eigenvectors of the smaller of `WᵀW` and `WWᵀ`. Singular values below
    /// `1e-8` of the largest are lost; f32 does not resolve them either.
    ///
    /// # Panics
    /// If a weight is not finite.
    pub fn of(weights: ArrayView2<f32>) -> Self {
        let matrix = weights.mapv(f64::from);
        let gram = if matrix.nrows() < matrix.ncols() { matrix.dot(&matrix.t()) } else { matrix.t().dot(&matrix) };
        let n = gram.nrows();
        let found = eigen(gram.iter().copied().collect(), n);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| found.values[b].total_cmp(&found.values[a]).then(a.cmp(&b)));
        let vectors = Array2::from_shape_fn((n, n), |(k, at)| found.vectors[order[k] * n + at]);
        Self { energies: order.iter().map(|&at| found.values[at].max(0.0)).collect(), matrix, vectors }
    }

    /// Returns the best factors of this rank.
    ///
    /// `‖W - up · down‖²` is the sum of the squared singular values that are left out (Eckart and Young, "The
    /// approximation of one matrix by another of lower rank", 1936). Each factor is scaled by `√σ` of every
    /// singular value, so that both have the same scale for training and rounding.
    ///
    /// # Panics
    /// If the rank is 0 or larger than either side.
    pub fn factors(&self, rank: usize) -> Factors {
        assert!(rank > 0 && rank <= self.energies.len(), "a rank from 1 to {}", self.energies.len());
        let kept = self.vectors.slice(s![..rank, ..]);
        let roots: Vec<f64> = self.energies[..rank].iter().map(|energy| energy.sqrt().sqrt()).collect();
        // The singular vectors of the shorter side, and W times each of them, one vector per row.
        let (mut vectors, mut images) = if self.matrix.nrows() < self.matrix.ncols() {
            (kept.to_owned(), kept.dot(&self.matrix))
        } else {
            (kept.to_owned(), kept.dot(&self.matrix.t()))
        };
        for (k, &root) in roots.iter().enumerate() {
            vectors.row_mut(k).mapv_inplace(|value| value * root);
            // If the singular value is 0, W times its vector is 0 too: this avoids 0 / 0.
            images.row_mut(k).mapv_inplace(|value| if root > 0.0 { value / root } else { 0.0 });
        }
        let (up, down) = if self.matrix.nrows() < self.matrix.ncols() { (vectors, images) } else { (images, vectors) };
        let total: f64 = self.energies.iter().sum();
        let energy = if total > 0.0 { self.energies[..rank].iter().sum::<f64>() / total } else { 1.0 };
        let in_order = |matrix: ArrayView2<f64>| matrix.iter().map(|&value| value as f32).collect();
        Factors { rank, up: in_order(up.t()), down: in_order(down.view()), energy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(n_rows: usize, n_cols: usize) -> Vec<f32> {
        let mut values = vec![0.0; n_rows * n_cols];
        crate::prune::score::random(7, 0, &mut values);
        values.iter().map(|value| 2.0 * value - 1.0).collect()
    }

    fn spectrum(w: &[f32], n_rows: usize, n_cols: usize) -> Spectrum {
        Spectrum::of(ArrayView2::from_shape((n_rows, n_cols), w).unwrap())
    }

    /// Returns `‖w - up · down‖²`.
    fn error(w: &[f32], factors: &Factors, n_rows: usize, n_cols: usize) -> f64 {
        let at = |row: usize, col: usize| -> f64 {
            let terms = (0..factors.rank)
                .map(|k| f64::from(factors.up[row * factors.rank + k]) * f64::from(factors.down[k * n_cols + col]));
            f64::from(w[row * n_cols + col]) - terms.sum::<f64>()
        };
        (0..n_rows).flat_map(|row| (0..n_cols).map(move |col| (row, col))).map(|(row, col)| at(row, col).powi(2)).sum()
    }

    #[test]
    fn at_full_rank_the_product_is_the_matrix() {
        for (n_rows, n_cols) in [(1, 1), (1, 5), (31, 33), (33, 31), (32, 32)] {
            let w = weights(n_rows, n_cols);
            let factors = spectrum(&w, n_rows, n_cols).factors(n_rows.min(n_cols));
            assert!(error(&w, &factors, n_rows, n_cols) < 1e-9, "{n_rows} x {n_cols}");
            assert!((factors.energy - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn the_error_is_the_sum_of_the_squared_singular_values_left_out() {
        for (n_rows, n_cols) in [(24, 40), (40, 24)] {
            let w = weights(n_rows, n_cols);
            let found = spectrum(&w, n_rows, n_cols);
            let squares: f64 = w.iter().map(|w| f64::from(*w).powi(2)).sum();
            assert!((found.energies.iter().sum::<f64>() - squares).abs() < 1e-9 * squares);
            assert!(found.energies.is_sorted_by(|a, b| a >= b));
            for rank in [1, 7, 23] {
                let left_out: f64 = found.energies[rank..].iter().sum();
                let error = error(&w, &found.factors(rank), n_rows, n_cols);
                assert!((error - left_out).abs() < 1e-5 * squares, "rank {rank}: {error} and {left_out}");
            }
        }
    }

    #[test]
    fn the_rank_of_a_low_rank_matrix_is_found() {
        let (up, down) = (weights(20, 3), weights(3, 30));
        let w: Vec<f32> =
            (0..600).map(|at| (0..3).map(|k| up[at / 30 * 3 + k] * down[k * 30 + at % 30]).sum()).collect();
        let found = spectrum(&w, 20, 30);
        let rank = Rank::Energy(Ratio::new(0.999_999).unwrap()).of(&found.energies, 20, 30);
        assert_eq!(rank, Some(3));
        assert!(error(&w, &found.factors(3), 20, 30) < 1e-9);
        let zeros = spectrum(&[0.0; 600], 20, 30).factors(2);
        assert!(zeros.up.iter().chain(&zeros.down).all(|value| value.is_finite()));
        assert_eq!(error(&[0.0; 600], &zeros, 20, 30), 0.0);
    }

    #[test]
    fn a_rank_follows_from_energy_or_bytes() {
        let ratio = |share| Ratio::new(share).unwrap();
        let energies = [8.0, 1.0, 0.5, 0.5];
        let by_energy = |share| Rank::Energy(ratio(share)).of(&energies, 100, 100);
        assert_eq!(
            [by_energy(0.5), by_energy(0.8), by_energy(0.81), by_energy(0.9), by_energy(0.95)],
            [1, 1, 2, 2, 3].map(Some)
        );
        let by_bytes = |share, n_rows, n_cols| Rank::Bytes(ratio(share)).of(&energies, n_rows, n_cols);
        assert_eq!(by_bytes(0.5, 100, 100), Some(25));
        assert_eq!(by_bytes(0.5, 80, 512), Some(34)); // 34 * 592 = 20128 of 20480
        assert_eq!(by_bytes(0.1, 10, 10), None); // less than rank 1
        assert_eq!(by_bytes(1.0, 100, 100), None); // 50 * 200 is the size of the matrix
        assert_eq!(Rank::Energy(ratio(1.0)).of(&energies, 4, 4), None);
    }
}
