//! Error compensation from layer inputs: the Cholesky factor of the inverse Hessian.

use crate::reconstruct::cholesky::{COLUMNS, cholesky, inverse_rows};
use crate::reconstruct::hessian::Hessian;
use rayon::prelude::*;

/// Damping values, relative to the mean diagonal, that are tried in turn if a smaller one yields no factor.
const MORE_DAMPING: [f64; 5] = [0.01, 0.05, 0.1, 0.5, 1.0];

/// The order in which columns are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColumnOrder {
    /// From the first to the last.
    #[default]
    Stored,
    /// By descending `E[x²]`, ties in stored order ("activation order").
    ///
    /// All other columns compensate for the errors of the inputs that matter most.
    ByActivation,
}

/// Options of a factorization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorSpec {
    /// The damping added to the diagonal, relative to its mean.
    pub damping: f64,
    /// The order in which columns are processed.
    pub order: ColumnOrder,
}

impl Default for FactorSpec {
    /// Returns damping of 0.01 and columns in stored order.
    fn default() -> Self {
        Self { damping: 0.01, order: ColumnOrder::Stored }
    }
}

/// Why errors are not compensated: weights are rounded to nearest and pruned by magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// No input vector was observed, for example by an expert that received no token.
    NothingSeen,
    /// The Hessian has no Cholesky factor with any damping: it has elements that are not finite.
    NotPositive,
    /// An updated weight, or a factor of an update, is not finite in f32.
    NotFinite,
}

/// The outcome of a factorization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorOutcome {
    /// The damping used, relative to the mean diagonal. It is the requested one, or the first that yielded a
    /// factor.
    pub damping: f64,
    /// The number of dead inputs, which were 0 in all vectors.
    pub n_dead: usize,
    /// Why there is no factor, if there is none.
    pub fallback: Option<Fallback>,
}

/// The upper Cholesky factor `U` of the inverse Hessian.
///
/// `H⁻¹ = Uᵀ·U` with `H = (2/N) Σ x xᵀ + damping·mean(diag)·I`, in f64. An input that was always 0 is dead: the
/// data says nothing about its weights, and its `H_ii` is 1.
///
/// The factor is the inverse of the upper triangular `R` with `H = R·Rᵀ`, a Cholesky factorization from the
/// last column on. The references invert `H` and factorize the inverse; this takes half the work and has
/// smaller rounding errors.
///
/// Takes 4 bytes for each pair of inputs, and 12 during the computation. Source: Frantar et al., "GPTQ", 2023,
/// section 3.3.
#[derive(Debug, Clone)]
pub struct InverseFactor {
    n_cols: usize,
    order: Vec<usize>,
    is_ordered: bool,
    is_dead: Vec<bool>,
    pivots: Vec<f32>,
    /// `U_jk / U_jj` above the diagonal, `[n, n]` in processing order; `None` if errors are not compensated.
    carry: Option<Vec<f32>>,
    outcome: FactorOutcome,
}

impl InverseFactor {
    /// Computes the factor from the Gram matrix `Σ x xᵀ` of `count` vectors, row-major.
    ///
    /// If `H` has no factor, damping is increased. The factor of the identity is returned if no damping helps,
    /// if no vector was observed, or if the factor is not finite in f32; [`outcome`](Self::outcome) has the
    /// reason. Any thread calls `check_stop`, about every 64 columns.
    ///
    /// # Errors
    /// The first error of `check_stop`.
    ///
    /// # Panics
    /// If the matrix is not square, or the damping is negative or not finite.
    pub fn new<E: Send>(
        gram: &[f64],
        count: u64,
        spec: &FactorSpec,
        check_stop: &(impl Fn() -> Result<(), E> + Sync),
    ) -> Result<Self, E> {
        let n = gram.len().isqrt();
        assert_eq!(n * n, gram.len(), "the Gram matrix is square");
        assert!(spec.damping >= 0.0 && spec.damping.is_finite(), "damping of {}", spec.damping);
        if count == 0 {
            return Ok(Self::identity(n, vec![false; n], spec.damping, Fallback::NothingSeen));
        }
        let is_ordered = spec.order == ColumnOrder::ByActivation;
        let hessian = Hessian::new(gram, n, count, is_ordered);
        let is_dead: Vec<bool> = (0..n).map(|col| hessian.is_dead(col)).collect();
        let more = MORE_DAMPING.into_iter().filter(|&more| more > spec.damping);
        for damping in std::iter::once(spec.damping).chain(more) {
            let mut lower = hessian.damped_and_reversed(damping);
            if cholesky(&mut lower, n, check_stop)? {
                let n_dead = is_dead.iter().filter(|&&dead| dead).count();
                let outcome = FactorOutcome { damping, n_dead, fallback: None };
                let (pivots, carry) = carry_of(&lower, n, check_stop)?;
                if !pivots.iter().chain(&carry).all(|value| value.is_finite()) {
                    return Ok(Self::identity(n, vec![false; n], damping, Fallback::NotFinite));
                }
                return Ok(Self {
                    n_cols: n,
                    order: hessian.order,
                    is_ordered,
                    is_dead,
                    pivots,
                    carry: Some(carry),
                    outcome,
                });
            }
        }
        Ok(Self::identity(n, is_dead, spec.damping, Fallback::NotPositive))
    }

    fn identity(n: usize, is_dead: Vec<bool>, damping: f64, fallback: Fallback) -> Self {
        let n_dead = is_dead.iter().filter(|&&dead| dead).count();
        let outcome = FactorOutcome { damping, n_dead, fallback: Some(fallback) };
        let (order, pivots) = ((0..n).collect(), vec![1.0; n]);
        Self { n_cols: n, order, is_ordered: false, is_dead, pivots, carry: None, outcome }
    }

    /// Returns the outcome of the factorization.
    pub fn outcome(&self) -> FactorOutcome {
        self.outcome
    }

    /// Returns the number of columns of the weights.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the columns in the order in which they are processed.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns `1 / U_kk` in processing order.
    ///
    /// Its square is the loss per squared error of column `k` after all later columns have compensated for the
    /// error.
    pub fn pivots(&self) -> &[f32] {
        &self.pivots
    }

    /// Returns whether columns are processed in another order than they are stored in.
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Returns for each input whether it was always 0.
    pub(crate) fn is_dead(&self) -> &[bool] {
        &self.is_dead
    }

    /// Returns `U_jk / U_jj` above the diagonal, `[n, n]` in processing order.
    pub(crate) fn carry(&self) -> Option<&[f32]> {
        self.carry.as_deref()
    }
}

/// Returns `1 / U_kk`, and `U_jk / U_jj` above the diagonal, from the lower factor of the reversed matrix.
///
/// The inverse of that factor is `U` with rows and columns reversed.
fn carry_of<E: Send>(
    lower: &[f64],
    n: usize,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(Vec<f32>, Vec<f32>), E> {
    let mut carry = vec![0.0; n * n];
    carry.par_chunks_mut(COLUMNS * n.max(1)).enumerate().try_for_each(|(chunk, rows)| {
        check_stop()?;
        let (first, n_rows) = (chunk * COLUMNS, rows.len() / n);
        let columns = inverse_rows(lower, n, n - first - n_rows..n - first);
        for (i, row) in rows.chunks_exact_mut(n).enumerate() {
            let (j, lane) = (first + i, n_rows - 1 - i);
            let diagonal = columns[n - 1 - j][lane];
            for k in j + 1..n {
                row[k] = (columns[n - 1 - k][lane] / diagonal) as f32;
            }
        }
        Ok(())
    })?;
    Ok(((0..n).rev().map(|k| lower[k * n + k] as f32).collect(), carry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn made(gram: &[f64], count: u64, spec: &FactorSpec) -> InverseFactor {
        let Ok(factor) = InverseFactor::new(gram, count, spec, &|| Ok::<(), Infallible>(()));
        factor
    }

    #[test]
    fn a_factor_by_hand() {
        // H = [[4, 2], [2, 5]], its inverse is [[5, -2], [-2, 4]] / 16: U_01/U_00 is -2/5, and -2/4 in the
        // reverse order.
        let factor = made(&[8.0, 4.0, 4.0, 10.0], 4, &FactorSpec { damping: 0.0, ..FactorSpec::default() });
        let close = |found: f32, expected: f32| (found - expected).abs() < 1e-6;
        assert!(close(factor.pivots()[0], 3.2_f32.sqrt()) && close(factor.pivots()[1], 5_f32.sqrt()));
        assert!(close(factor.carry().unwrap()[1], -0.4));
        let ordered = made(&[8.0, 4.0, 4.0, 10.0], 4, &FactorSpec { damping: 0.0, order: ColumnOrder::ByActivation });
        assert_eq!(ordered.order(), [1, 0]);
        assert!(close(ordered.carry().unwrap()[1], -0.5) && close(ordered.pivots()[1], 2.0));
    }

    #[test]
    fn a_singular_matrix_is_damped_until_it_has_a_factor() {
        let spec = FactorSpec { damping: 0.0, ..FactorSpec::default() };
        assert_eq!(made(&[1.0; 9], 3, &spec).outcome(), FactorOutcome { damping: 0.01, n_dead: 0, fallback: None });
        // A matrix that rounding could have made slightly indefinite: eigenvalues 1 ± 1.2.
        let outcome = made(&[1.0, 1.2, 1.2, 1.0], 3, &FactorSpec::default()).outcome();
        assert_eq!(outcome, FactorOutcome { damping: 0.5, n_dead: 0, fallback: None });
    }

    #[test]
    fn a_factor_beyond_f32_becomes_the_identity() {
        for size in [1e30, 1e78, 1e150, 1e300] {
            let gram = [8.0 * size, 4.0 * size, 4.0 * size, 10.0 * size];
            let factor = made(&gram, 4, &FactorSpec::default());
            assert!(factor.pivots().iter().all(|pivot| pivot.is_finite()), "{size}");
            let expected = (size > 1e70).then_some(Fallback::NotFinite);
            assert_eq!((factor.outcome().fallback, factor.carry().is_none()), (expected, expected.is_some()), "{size}");
        }
    }

    #[test]
    fn a_missing_factor_becomes_the_identity() {
        let unseen = made(&[0.0; 9], 0, &FactorSpec { order: ColumnOrder::ByActivation, ..FactorSpec::default() });
        assert_eq!(unseen.outcome(), FactorOutcome { damping: 0.01, n_dead: 0, fallback: Some(Fallback::NothingSeen) });
        let broken = made(&[f64::NAN, 0.0, 0.0, 0.0], 2, &FactorSpec::default());
        assert_eq!(broken.outcome(), FactorOutcome { damping: 0.01, n_dead: 1, fallback: Some(Fallback::NotPositive) });
        assert!(unseen.carry().is_none() && broken.carry().is_none());
        assert_eq!((unseen.pivots(), unseen.order()), (&[1.0; 3][..], &[0, 1, 2][..]));
        assert_eq!(made(&[], 5, &FactorSpec::default()).outcome().fallback, None, "no columns at all");
    }
}
