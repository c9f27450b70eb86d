//! Gram matrices of batches: the upper triangle, in panels of rows.

use crate::module::read_f32;
use briquette_core::Result;
use burn::tensor::Tensor;

/// Rows of a panel.
const PANEL: usize = 192;

/// Upper triangle of `xᵀ·x` for samples `x` `[samples, n]`.
#[derive(Debug)]
pub(crate) struct UpperGram {
    n: usize,
    /// For each panel, its rows from `first`, and their columns from `first`.
    panels: Vec<Vec<f32>>,
}

impl UpperGram {
    /// Computes the matrix of a batch.
    ///
    /// # Errors
    /// Io: the device fails; the error has this name.
    pub(crate) fn of(samples: &Tensor<2>, name: &str) -> Result<Self> {
        let n = samples.dims()[1];
        let panel = |first: usize| {
            let rows = samples.clone().narrow(1, first, PANEL.min(n - first)).transpose();
            read_f32(rows.matmul(samples.clone().narrow(1, first, n - first)), name)
        };
        Ok(Self { n, panels: (0..n).step_by(PANEL).map(panel).collect::<Result<_>>()? })
    }

    /// Adds the matrix, times `sign`, to the upper triangle of an `[n, n]` matrix. Entries below the diagonal
    /// are undefined afterwards.
    pub(crate) fn add_to(&self, sum: &mut [f64], sign: f64) {
        for (panel, values) in self.panels.iter().enumerate() {
            let first = panel * PANEL;
            let rows = sum[first * self.n..].chunks_mut(self.n);
            for (row, values) in rows.zip(values.chunks(self.n - first)) {
                row[first..].iter_mut().zip(values).for_each(|(sum, &value)| *sum += sign * f64::from(value));
            }
        }
    }
}

/// The Gram matrices of a batch.
#[derive(Debug)]
pub(crate) enum BatchGram {
    /// The matrix of all inputs.
    Upper(UpperGram),
    /// A matrix for each channel group, `[groups, inputs, inputs]`.
    Groups(Vec<f32>),
}

impl BatchGram {
    /// Returns the number of elements of the sum that the matrices are added to.
    pub(crate) fn n_elements(&self) -> usize {
        match self {
            Self::Upper(gram) => gram.n * gram.n,
            Self::Groups(matrices) => matrices.len(),
        }
    }

    /// Adds the matrices, times `sign`, to a sum. Entries below the diagonal are undefined afterwards.
    pub(crate) fn add_to(&self, sum: &mut [f64], sign: f64) {
        match self {
            Self::Upper(gram) => gram.add_to(sum, sign),
            Self::Groups(matrices) => {
                sum.iter_mut().zip(matrices).for_each(|(sum, &value)| *sum += sign * f64::from(value));
            }
        }
    }
}

/// Computes the Gram matrix of each channel group, `[groups, inputs, inputs]`, from patches `[groups, inputs, samples]`.
///
/// # Errors
/// Io: the device fails; the error has this name.
pub(crate) fn group_grams(patches: Tensor<3>, name: &str) -> Result<Vec<f32>> {
    read_f32(patches.clone().matmul(patches.swap_dims(1, 2)), name)
}

/// Returns `aᵀ·b` of samples `[samples, n]` and `[samples, m]`: `[n, m]`.
///
/// # Errors
/// Io: the device fails; the error has this name.
pub fn cross_product(a: &Tensor<2>, b: &Tensor<2>, name: &str) -> Result<Vec<f32>> {
    let n = a.dims()[1];
    let panel = |first: usize| {
        let rows = a.clone().narrow(1, first, PANEL.min(n - first)).transpose();
        read_f32(rows.matmul(b.clone()), name)
    };
    let panels: Vec<Vec<f32>> = (0..n).step_by(PANEL).map(panel).collect::<Result<_>>()?;
    Ok(panels.concat())
}

/// Copies the upper triangle of an `[n, n]` matrix to the lower one.
pub(crate) fn mirror(gram: &mut [f64], n: usize) {
    /// Both triangles are processed in squares that fit the cache.
    const SQUARE: usize = 64;
    for first in (0..n).step_by(SQUARE) {
        for row in 0..n {
            for column in (first..(first + SQUARE).min(n)).take_while(|&column| column < row) {
                gram[row * n + column] = gram[column * n + row];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn products_of_two_samples_are_sums_over_them() {
        let (n, m) = (PANEL + 5, 3);
        let values = |n: usize, seed: usize| (0..2 * n).map(|i| ((i * seed) % 13) as f32 - 6.0).collect::<Vec<f32>>();
        let (a, b) = (values(n, 5), values(m, 7));
        let tensor =
            |values: &[f32], n| Tensor::<2>::from_data(TensorData::new(values.to_vec(), [2, n]), &Device::flex());
        let found = cross_product(&tensor(&a, n), &tensor(&b, m), "layer").unwrap();
        let expected: Vec<f32> =
            (0..n * m).map(|at| (0..2).map(|s| a[s * n + at / m] * b[s * m + at % m]).sum()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn mirrored_triangles_make_the_gram_matrix() {
        for n in [1, 5, PANEL, 2 * PANEL + 37] {
            let values: Vec<f32> = (0..3 * n).map(|i| ((i * i) % 17) as f32 - 8.0).collect();
            let samples = Tensor::<2>::from_data(TensorData::new(values.clone(), [3, n]), &Device::flex());
            let mut found = vec![0.0; n * n];
            let gram = UpperGram::of(&samples, "layer").unwrap();
            gram.add_to(&mut found, 2.0);
            gram.add_to(&mut found, -1.0);
            mirror(&mut found, n);
            let product = |i: usize, j: usize| (0..3).map(|s| f64::from(values[s * n + i] * values[s * n + j])).sum();
            let expected: Vec<f64> = (0..n * n).map(|at| product(at / n, at % n)).collect();
            assert_eq!(found, expected, "{n} inputs");
        }
    }
}
