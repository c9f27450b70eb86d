//! Weight-only int8: f32 activations times 8-bit codes.

use crate::activations::ActivationElement;
use crate::float_rows::for_float_rows;
use crate::linear::assert_shapes;
use crate::panels::threads_for;
use crate::simd::{OutputBlock, PanelColumns};
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 20;

/// Computes `y[m, o] = Σᵢ x[m, i] * wq[o, i] * sw[o] + bias[o]` in f32, inputs in order.
///
/// Uses the instructions of `level`. Codes become floats in registers; sparse codes are expanded to bytes, a
/// panel of 32 outputs at a time. A NaN or infinity in a row of `x` gives outputs that are not finite, as in
/// f32.
///
/// # Panics
/// If `x` is not `[n_rows, n_in]`, `bias` not `[n_out]` or `y` not `[n_rows, n_out]`.
pub fn weight_only_linear<T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    n_rows: usize,
    weights: &impl Int8Weights,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let (n_in, n_out) = (weights.n_in(), weights.n_out());
    assert_shapes(x.len(), n_rows, [n_out, n_in], bias, y.len());
    let n_threads = threads_for(n_rows * n_in * n_out, PAYS);
    for_float_rows(x, n_in, OutputBlock::new(y, n_rows, n_out), n_threads, &|rows, index, out| {
        let mut columns = PanelColumns::EMPTY;
        weights.columns(index, bias, &mut columns);
        weights.multiply_floats(level, rows, index, &columns, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::tests::{floats, packed, sparse};
    use crate::weights::sealed::Panels as _;
    use proptest::prelude::*;

    fn agrees(m: usize, k: usize, n: usize, seed: u64) {
        let (dense, sparse, x, bias) = (packed(n, k, seed), sparse(n, k, seed), floats(m * k, 9), floats(n, 3));
        let mut row = vec![f32::NAN; k];
        for (o, floats) in dense.to_floats().chunks(k.max(1)).enumerate() {
            dense.read_row(o, &mut row);
            assert_eq!(row, floats, "output {o} of K {k} N {n}");
            sparse.read_row(o, &mut row);
            assert_eq!(row, floats, "sparse, output {o} of K {k} N {n}");
        }
        let mut slow = vec![0.0; m * n];
        weight_only_linear(SimdLevel::SCALAR, &x, m, &dense, Some(&bias), &mut slow);
        for (i, &value) in slow.iter().enumerate() {
            let (row, o) = (i / n, i % n);
            let products = (0..k).map(|col| f64::from(x[row * k + col]) * f64::from(dense.code(o, col)));
            let exact = products.sum::<f64>() * f64::from(dense.scale(o)) + f64::from(bias[o]);
            assert!((exact - f64::from(value)).abs() < 1e-3 * (1.0 + k as f64), "{value} {exact}");
        }
        for level in SimdLevel::available() {
            let mut fast = vec![f32::NAN; m * n];
            weight_only_linear(level, &x, m, &dense, Some(&bias), &mut fast);
            assert_eq!(fast, slow, "{level} M {m} K {k} N {n}");
            fast.fill(f32::NAN);
            weight_only_linear(level, &x, m, &sparse, Some(&bias), &mut fast);
            assert_eq!(fast, slow, "sparse {level} M {m} K {k} N {n}");
        }
    }

    #[test]
    fn every_path_gives_the_bits_of_the_reference_at_awkward_shapes() {
        for m in [0, 1, 2, 12, 13, 25, 250] {
            for k in [0, 1, 2, 3, 4, 33, 130] {
                for n in [0, 1, 16, 31, 33, 65] {
                    agrees(m, k, n, (m + k * 3 + n * 7) as u64);
                }
            }
        }
    }

    #[test]
    fn non_finite_rows_do_not_affect_others() {
        let (weights, mut x) = (packed(40, 70, 1), floats(3 * 70, 2));
        x[70 + 69] = f32::NAN;
        for level in SimdLevel::available() {
            let mut y = vec![0.0; 3 * 40];
            weight_only_linear(level, &x, 3, &weights, None, &mut y);
            assert!(y.iter().enumerate().all(|(i, value)| value.is_nan() == (i / 40 == 1)), "{level}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_path_gives_the_bits_of_the_reference(m in 0_usize..30, k in 0_usize..300, n in 0_usize..70, seed: u64) {
            agrees(m, k, n, seed);
        }
    }
}
