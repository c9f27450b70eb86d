//! Eigenvalues and eigenvectors of a symmetric matrix, by Householder tridiagonalization and implicit QL steps.
//!
//! Source: Bowdler, Martin, Reinsch and Wilkinson, "The QR and QL algorithms for symmetric matrices", 1971
//! (`tred2`, `tql2`).

/// An eigenvalue takes two or three steps; only a NaN takes more than this limit.
const MOST_STEPS: usize = 100;

/// Eigenvalues and eigenvectors.
#[derive(Debug)]
pub(super) struct Eigen {
    /// In no particular order.
    pub(super) values: Vec<f64>,
    /// Vectors of length 1, concatenated in the order of `values`.
    pub(super) vectors: Vec<f64>,
}

/// Computes the eigenvalues and eigenvectors of a matrix `[n, n]` with both triangles filled.
///
/// # Panics
/// If `matrix` does not have `n²` elements, or an element is not finite.
pub(super) fn eigen(matrix: Vec<f64>, n: usize) -> Eigen {
    assert_eq!(matrix.len(), n * n, "a square matrix");
    assert!(matrix.iter().all(|value| value.is_finite()), "an element is not finite");
    let mut found = Ql { n, columns: matrix, diagonal: vec![0.0; n], beside: vec![0.0; n] };
    if n > 0 {
        found.reduce();
        found.gather();
        found.diagonalize();
    }
    Eigen { values: found.diagonal, vectors: found.columns }
}

/// `columns` begins as the matrix and ends as its eigenvectors, column-major.
struct Ql {
    n: usize,
    columns: Vec<f64>,
    diagonal: Vec<f64>,
    beside: Vec<f64>,
}

impl Ql {
    fn at(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.columns[column * self.n + row]
    }

    /// Reduces the matrix to tridiagonal form, from the last row up. The Householder vectors stay in the
    /// columns.
    fn reduce(&mut self) {
        let n = self.n;
        (0..n).for_each(|j| self.diagonal[j] = self.columns[j * n + n - 1]);
        for i in (1..n).rev() {
            let scale: f64 = self.diagonal[..i].iter().map(|value| value.abs()).sum();
            let mut h = 0.0;
            if scale == 0.0 {
                self.beside[i] = self.diagonal[i - 1];
                for j in 0..i {
                    self.diagonal[j] = *self.at(i - 1, j);
                    (*self.at(i, j), *self.at(j, i)) = (0.0, 0.0);
                }
            } else {
                self.diagonal[..i].iter_mut().for_each(|value| *value /= scale);
                h = self.diagonal[..i].iter().map(|value| value * value).sum();
                let f = self.diagonal[i - 1];
                let g = if f > 0.0 { -f64::sqrt(h) } else { f64::sqrt(h) };
                self.beside[i] = scale * g;
                h -= f * g;
                self.diagonal[i - 1] = f - g;
                self.reflect(i, h);
            }
            self.diagonal[i] = h;
        }
    }

    /// Applies the reflection of row `i`, stored in `diagonal`, from both sides to the rows and columns before
    /// `i`.
    fn reflect(&mut self, i: usize, h: f64) {
        let (n, d, e) = (self.n, &mut self.diagonal, &mut self.beside);
        e[..i].fill(0.0);
        for j in 0..i {
            let f = d[j];
            self.columns[i * n + j] = f;
            let column = &self.columns[j * n..j * n + i];
            let mut g = e[j] + column[j] * f;
            for k in j + 1..i {
                g += column[k] * d[k];
                e[k] += column[k] * f;
            }
            e[j] = g;
        }
        e[..i].iter_mut().for_each(|value| *value /= h);
        let half = e[..i].iter().zip(&d[..i]).map(|(e, d)| e * d).sum::<f64>() / (h + h);
        e[..i].iter_mut().zip(&d[..i]).for_each(|(e, d)| *e -= half * d);
        for j in 0..i {
            let (f, g) = (d[j], e[j]);
            let column = &mut self.columns[j * n..j * n + n];
            (j..i).for_each(|k| column[k] -= f * e[k] + g * d[k]);
            d[j] = column[i - 1];
            column[i] = 0.0;
        }
    }

    /// Multiplies the reflections.
    fn gather(&mut self) {
        let n = self.n;
        for i in 0..n - 1 {
            *self.at(n - 1, i) = *self.at(i, i);
            *self.at(i, i) = 1.0;
            let h = self.diagonal[i + 1];
            let (before, after) = self.columns.split_at_mut((i + 1) * n);
            let reflection = &mut after[..=i];
            if h != 0.0 {
                self.diagonal[..=i].iter_mut().zip(&*reflection).for_each(|(d, value)| *d = value / h);
                for column in before.chunks_mut(n) {
                    let g: f64 = column.iter().zip(&*reflection).map(|(a, b)| a * b).sum();
                    column.iter_mut().zip(&self.diagonal[..=i]).for_each(|(value, d)| *value -= g * d);
                }
            }
            reflection.fill(0.0);
        }
        for j in 0..n {
            self.diagonal[j] = std::mem::take(self.at(n - 1, j));
        }
        *self.at(n - 1, n - 1) = 1.0;
        self.beside[0] = 0.0;
    }

    /// Reduces the off-diagonal elements to 0.
    fn diagonalize(&mut self) {
        let n = self.n;
        self.beside.rotate_left(1);
        let (mut shift, mut largest) = (0.0, 0.0_f64);
        for l in 0..n {
            largest = largest.max(self.diagonal[l].abs() + self.beside[l].abs());
            let small = f64::EPSILON * largest;
            // `beside[n - 1]` is 0, so the search always succeeds.
            let m = (l..n).find(|&m| self.beside[m].abs() <= small).unwrap_or(n - 1);
            let n_steps = if m > l { MOST_STEPS } else { 0 };
            for _ in 0..n_steps {
                shift += self.ql_step(l, m);
                if self.beside[l].abs() <= small {
                    break;
                }
            }
            self.diagonal[l] += shift;
            self.beside[l] = 0.0;
        }
    }

    /// Runs one implicit QL step on rows `l..=m`. Returns the shift of all later eigenvalues.
    fn ql_step(&mut self, l: usize, m: usize) -> f64 {
        let (n, d, e) = (self.n, &mut self.diagonal, &mut self.beside);
        let start = d[l];
        let p = (d[l + 1] - start) / (2.0 * e[l]);
        let r = if p < 0.0 { -p.hypot(1.0) } else { p.hypot(1.0) };
        (d[l], d[l + 1]) = (e[l] / (p + r), e[l] * (p + r));
        let (next, shift, beside_next) = (d[l + 1], start - d[l], e[l + 1]);
        d[l + 2..].iter_mut().for_each(|value| *value -= shift);
        let (mut p, mut c, mut s) = (d[m], 1.0, 0.0);
        let (mut c_before, mut c_third, mut s_before) = (1.0, 1.0, 0.0);
        for i in (l..m).rev() {
            (c_third, c_before, s_before) = (c_before, c, s);
            let (g, h) = (c * e[i], c * p);
            let r = p.hypot(e[i]);
            e[i + 1] = s * r;
            (s, c) = (e[i] / r, p / r);
            p = c * d[i] - s * g;
            d[i + 1] = h + s * (c * g + s * d[i]);
            let (left, right) = self.columns[i * n..(i + 2) * n].split_at_mut(n);
            for (left, right) in left.iter_mut().zip(right) {
                (*left, *right) = (c * *left - s * *right, s * *left + c * *right);
            }
        }
        let p = -s * s_before * c_third * beside_next * e[l] / next;
        (e[l], d[l]) = (s * p, c * p);
        shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvectors_are_orthonormal_and_scaled_by_the_matrix() {
        for n in [0, 1, 2, 3, 31, 32, 33] {
            let value = |i: usize, j: usize| ((i.min(j) * 7919 + i.max(j) * 104_729) % 1009) as f64 / 504.5 - 1.0;
            let matrix: Vec<f64> = (0..n * n).map(|at| value(at / n, at % n)).collect();
            let found = eigen(matrix.clone(), n);
            let vector = |k: usize| &found.vectors[k * n..(k + 1) * n];
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            for a in 0..n {
                for b in 0..n {
                    let expected = if a == b { 1.0 } else { 0.0 };
                    assert!((dot(vector(a), vector(b)) - expected).abs() < 1e-12, "{n}: {a} and {b}");
                    let scaled = dot(&matrix[b * n..(b + 1) * n], vector(a));
                    assert!((scaled - found.values[a] * vector(a)[b]).abs() < 1e-11, "{n}: {a}");
                }
            }
        }
    }

    #[test]
    fn a_diagonal_matrix_has_its_diagonal_as_eigenvalues() {
        let mut diagonal = vec![0.0; 16];
        (0..4).for_each(|i| diagonal[5 * i] = [3.0, -1.0, 0.0, 3.0][i]);
        let mut values = eigen(diagonal, 4).values;
        values.sort_by(f64::total_cmp);
        assert_eq!(values, [-1.0, 0.0, 3.0, 3.0]);
        assert_eq!(eigen(vec![0.0; 9], 3).values, [0.0; 3]);
    }
}
