//! Random rotations of channels, which spread outliers over all channels.

use briquette_core::random::uniform;
use std::f64::consts::{PI, SQRT_2};

/// A random orthogonal matrix `Q = D (H ⊗ C)` of n by n.
///
/// `D` has random signs on its diagonal. `H` is the Walsh-Hadamard matrix of the largest power of two that divides n, divided by
/// the root of its size. `C` is the Hartley matrix of the odd factor m of n: `C_jl = (cos(2πjl/m) + sin(2πjl/m)) / √m`. So no
/// element is larger than `√(2/n)`, and a row is rotated in `n (log2 n + m)` operations.
///
/// Source: QuaRot (Ashkboos et al. 2024), whose randomized Hadamard matrices need tables for odd factors.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelRotation {
    signs: Vec<f64>,
    /// `[m, m]`.
    odd: Vec<f64>,
}

impl ChannelRotation {
    /// Makes the rotation of `n` channels. Equal seeds give equal rotations.
    pub fn new(n: usize, seed: u64) -> Self {
        let signs = (0..n).map(|at| if uniform(seed, at as u64) < 0.5 { -1.0 } else { 1.0 }).collect();
        let m = if n == 0 { 1 } else { n >> n.trailing_zeros() };
        let angle = |at: usize| 2.0 * PI * ((at / m * (at % m)) % m) as f64 / m as f64;
        // cos a + sin a = √2 sin(a + π/4).
        let odd = (0..m * m).map(|at| SQRT_2 * (angle(at) + PI / 4.0).sin() / (m as f64).sqrt()).collect();
        Self { signs, odd }
    }

    /// Returns the number of channels.
    pub fn n(&self) -> usize {
        self.signs.len()
    }

    /// Replaces a row x by `x Q`.
    ///
    /// # Panics
    /// If the row has another number of channels.
    pub fn apply(&self, row: &mut [f64]) {
        assert_eq!(row.len(), self.n(), "channels of a row");
        row.iter_mut().zip(&self.signs).for_each(|(value, sign)| *value *= sign);
        let m = self.odd.len().isqrt();
        if m > 1 {
            let mut from = vec![0.0; m];
            for part in row.chunks_exact_mut(m) {
                from.copy_from_slice(part);
                for (value, column) in part.iter_mut().zip(self.odd.chunks_exact(m)) {
                    *value = from.iter().zip(column).map(|(x, c)| x * c).sum();
                }
            }
        }
        hadamard(row, m);
    }
}

/// Multiplies by the Walsh-Hadamard matrix, divided by the root of its size. Each of its elements is a run of `width` values.
fn hadamard(row: &mut [f64], width: usize) {
    let n = row.len() / width.max(1);
    let mut half = 1;
    while half < n {
        for pair in row.chunks_exact_mut(2 * half * width) {
            let (first, second) = pair.split_at_mut(half * width);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (n as f64).sqrt();
    row.iter_mut().for_each(|value| *value *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `Q` by rows.
    fn matrix(rotation: &ChannelRotation) -> Vec<Vec<f64>> {
        let unit = |at: usize| (0..rotation.n()).map(|other| f64::from(u8::from(other == at))).collect();
        let row = |at: usize| {
            let mut row: Vec<f64> = unit(at);
            rotation.apply(&mut row);
            row
        };
        (0..rotation.n()).map(row).collect()
    }

    #[test]
    fn rotations_of_any_size_are_orthogonal_without_large_elements() {
        for n in [1, 2, 3, 5, 8, 12, 36, 43, 64, 90] {
            let rows = matrix(&ChannelRotation::new(n, 7));
            for (i, a) in rows.iter().enumerate() {
                assert!(a.iter().all(|value| value.abs() <= (2.0 / n as f64).sqrt() + 1e-12), "{n}");
                for (j, b) in rows.iter().enumerate() {
                    let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12, "{n}: rows {i} and {j} give {dot}");
                }
            }
        }
    }

    #[test]
    fn an_outlier_is_spread_and_the_seed_decides_the_signs() {
        let spread = |seed: u64| {
            let mut row = vec![0.01; 576];
            row[100] = 50.0;
            ChannelRotation::new(576, seed).apply(&mut row);
            row
        };
        assert!(spread(1).iter().all(|value| value.abs() < 50.0 * (2.0_f64 / 576.0).sqrt() + 0.1));
        assert_eq!(spread(1), spread(1));
        assert_ne!(spread(1), spread(2));
    }

    #[test]
    fn the_hadamard_matrix_is_the_known_one() {
        let mut row = [1.0, 2.0, 3.0, 4.0];
        hadamard(&mut row, 1);
        assert_eq!(row, [5.0, -1.0, -2.0, 0.0]);
    }
}
