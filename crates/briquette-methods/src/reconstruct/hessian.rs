//! The Hessian of a layer's squared output error, from the Gram matrix of its inputs.

use rayon::prelude::*;

/// A view of `H = (2/N) Σ x xᵀ` with reordered columns, and 1 on the diagonal for inputs that were always 0.
pub(crate) struct Hessian<'a> {
    gram: &'a [f64],
    n: usize,
    per_vector: f64,
    /// The columns in processing order.
    pub(crate) order: Vec<usize>,
}

impl<'a> Hessian<'a> {
    /// Creates the Hessian of a Gram matrix `[n, n]` over `count` vectors.
    ///
    /// `by_diagonal` orders columns by descending diagonal, ties in stored order.
    pub(crate) fn new(gram: &'a [f64], n: usize, count: u64, by_diagonal: bool) -> Self {
        let mut order: Vec<usize> = (0..n).collect();
        if by_diagonal {
            order.sort_by(|&a, &b| gram[b * n + b].total_cmp(&gram[a * n + a]));
        }
        Self { gram, n, per_vector: 2.0 / count as f64, order }
    }

    /// Returns whether an input was 0 in every vector. Then `H_ii` is 1.
    pub(crate) fn is_dead(&self, col: usize) -> bool {
        self.gram[col * self.n + col] == 0.0
    }

    fn diagonal(&self, col: usize) -> f64 {
        if self.is_dead(col) { 1.0 } else { self.per_vector * self.gram[col * self.n + col] }
    }

    /// Returns `H + damping·mean(diag H)·I`, `[n, n]` in reverse processing order, with only the lower triangle
    /// filled.
    pub(crate) fn damped_and_reversed(&self, damping: f64) -> Vec<f64> {
        let n = self.n;
        let added = damping * (0..n).map(|col| self.diagonal(col)).sum::<f64>() / n as f64;
        let reversed: Vec<usize> = self.order.iter().rev().copied().collect();
        let mut matrix = vec![0.0; n * n];
        matrix.par_chunks_mut(n.max(1)).enumerate().for_each(|(i, row)| {
            let from = &self.gram[reversed[i] * n..(reversed[i] + 1) * n];
            row.iter_mut().zip(&reversed[..i]).for_each(|(value, &col)| *value = self.per_vector * from[col]);
            row[i] = self.diagonal(reversed[i]) + added;
        });
        matrix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_ordered_damped_and_reversed() {
        let gram = [2.0, 1.0, 0.0, 1.0, 8.0, 0.0, 0.0, 0.0, 0.0];
        let hessian = Hessian::new(&gram, 3, 4, true);
        assert_eq!(hessian.order, [1, 0, 2]);
        assert!(hessian.is_dead(2) && !hessian.is_dead(0));
        // The diagonal is 1, 4 and 1 for the dead input; its mean is 2.
        assert_eq!(hessian.damped_and_reversed(0.5), [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.5, 5.0]);
        assert_eq!(Hessian::new(&gram, 3, 4, false).order, [0, 1, 2]);
    }
}
