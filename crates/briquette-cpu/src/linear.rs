//! `y = x · wᵀ + bias` in 8-bit codes.

use crate::activations::{ActivationElement, InputRounding};
use crate::panels::{for_panels, threads_for};
use crate::quantize_rows::QuantizedRows;
use crate::simd::{Kernel, OutputBlock, PanelColumns, RowBlock};
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;
use std::cell::RefCell;

/// The size of a block of quantized rows, which stays in the L2 cache.
const BLOCK_BYTES: usize = 1 << 20;
/// The most rows of a block: the output pages of this many rows stay in the first-level TLB.
const BLOCK_ROWS: usize = 256;
/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 22;

thread_local! {
    static ROWS: RefCell<QuantizedRows> = RefCell::new(QuantizedRows::default());
}

/// Computes `y[m, o] = Σᵢ xq[m, i] * wq[o, i] * sx[m] * sw[o] + bias[o]`, with `x` quantized per row.
///
/// With scales of columns, `x` is multiplied by them before it is quantized.
///
/// Uses the instructions of `level`. A row of `x` with a NaN or an infinity gives a row of NaN. Rows, inputs
/// and outputs may be 0.
///
/// # Panics
/// If `x` is not `[n_rows, n_in]`, `bias` not `[n_out]`, `y` not `[n_rows, n_out]`, or there are not `n_in` scales of columns.
pub fn int8_linear<'c, T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    n_rows: usize,
    rounding: impl Into<InputRounding<'c>>,
    weights: &impl Int8Weights,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let (n_in, n_out) = (weights.n_in(), weights.n_out());
    assert_shapes(x.len(), n_rows, [n_out, n_in], bias, y.len());
    let rounding = rounding.into();
    assert!([0, n_in].contains(&rounding.columns.len()), "{} scales for {n_in} columns", rounding.columns.len());
    let task = Int8Linear { level, n_in, rounding, weights, bias };
    task.run(x, OutputBlock::new(y, n_rows, n_out), threads_for(n_rows * n_in * n_out, PAYS));
}

/// Panics if the lengths do not match the shapes.
pub(crate) fn assert_shapes(x: usize, n_rows: usize, [n_out, n_in]: [usize; 2], bias: Option<&[f32]>, y: usize) {
    assert_eq!(x, n_rows * n_in, "{x} activations for [{n_rows}, {n_in}] and weights of [{n_out}, {n_in}]");
    assert_eq!(y, n_rows * n_out, "{y} outputs for [{n_rows}, {n_out}]");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), n_out, "a bias of {} for {n_out} outputs", bias.len());
    }
}

struct Int8Linear<'a, W> {
    level: SimdLevel,
    n_in: usize,
    rounding: InputRounding<'a>,
    weights: &'a W,
    bias: Option<&'a [f32]>,
}

impl<W: Int8Weights> Int8Linear<'_, W> {
    /// Splits rows over threads if each gets a few tiles of them, otherwise outputs.
    fn run<T: ActivationElement>(&self, x: &[T], out: OutputBlock, n_threads: usize) {
        let half = (out.n_rows() / 2).next_multiple_of(32);
        if n_threads > 1 && out.n_rows() >= 128 {
            let (x, out) = (x.split_at(half * self.n_in), out.split_rows(half));
            rayon::join(|| self.run(x.0, out.0, n_threads / 2), || self.run(x.1, out.1, n_threads.div_ceil(2)));
        } else {
            self.blocks(x, out, n_threads);
        }
    }

    fn blocks<T: ActivationElement>(&self, mut x: &[T], mut out: OutputBlock, n_threads: usize) {
        let block_rows = (BLOCK_BYTES / self.n_in.next_multiple_of(64).max(1)).clamp(32, BLOCK_ROWS) / 32 * 32;
        let mut rows = ROWS.with(RefCell::take);
        while out.n_rows() > 0 {
            let n = block_rows.min(out.n_rows());
            let (now, later) = x.split_at(n * self.n_in);
            let (block, rest) = out.split_rows(n);
            rows.fill(self.level, now, self.n_in, n, self.rounding);
            multiply_panels(self.level, rows.block(), self.weights, self.bias, 0, block, n_threads);
            (x, out) = (later, rest);
        }
        ROWS.set(rows);
    }
}

/// Multiplies rows that are already quantized, in blocks.
pub(crate) fn multiply_rows(
    level: SimdLevel,
    rows: RowBlock,
    weights: &dyn Int8Weights,
    bias: Option<&[f32]>,
    mut out: OutputBlock,
    n_threads: usize,
) {
    for first in (0..rows.n_rows()).step_by(BLOCK_ROWS) {
        let (block, later) = out.split_rows(BLOCK_ROWS.min(rows.n_rows() - first));
        multiply_panels(level, rows.part(first, block.n_rows()), weights, bias, 0, block, n_threads);
        out = later;
    }
}

/// Multiplies by as many panels as `out` has columns for, starting at `first`.
pub(crate) fn multiply_panels(
    level: SimdLevel,
    rows: RowBlock,
    weights: &(impl Int8Weights + ?Sized),
    bias: Option<&[f32]>,
    first: usize,
    out: OutputBlock,
    n_threads: usize,
) {
    for_panels(out, first, n_threads, &|run| {
        let (mut kernel, mut columns) = (Kernel::new(level, rows), PanelColumns::EMPTY);
        for (index, is_last, out) in run {
            weights.columns(index, bias, &mut columns);
            weights.multiply(&mut kernel, index, is_last, &columns, out);
        }
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{ActivationGrid, PackedInt8, SparseInt8};
    use proptest::prelude::*;

    pub(crate) fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed | 1;
        (0..n).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 33
        })
    }

    pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
        numbers(n, seed).map(|bits| bits as f32 / (1_u64 << 30) as f32 - 1.0).collect()
    }

    fn codes(n: usize, seed: u64) -> Vec<i8> {
        numbers(n, seed).map(|bits| if bits & 0x300 == 0 { 0 } else { bits as i8 }).collect()
    }

    pub(crate) fn packed(n_out: usize, n_in: usize, seed: u64) -> PackedInt8 {
        let scales: Vec<f32> = floats(n_out, seed ^ 5).iter().map(|scale| scale + 1.5).collect();
        PackedInt8::new(&codes(n_out * n_in, seed), &scales, n_out, n_in).unwrap()
    }

    pub(crate) fn sparse(n_out: usize, n_in: usize, seed: u64) -> SparseInt8 {
        let scales: Vec<f32> = floats(n_out, seed ^ 5).iter().map(|scale| scale + 1.5).collect();
        SparseInt8::new(&codes(n_out * n_in, seed), &scales, n_out, n_in).unwrap()
    }

    fn same(level: SimdLevel, m: usize, k: usize, n: usize, seed: u64) {
        let (weights, x, bias) = (packed(n, k, seed), floats(m * k, seed ^ 9), floats(n, seed ^ 3));
        for grid in [ActivationGrid::Symmetric, ActivationGrid::Asymmetric] {
            for bias in [None, Some(&bias[..])] {
                let (mut fast, mut slow) = (vec![f32::NAN; m * n], vec![0.0; m * n]);
                int8_linear(level, &x, m, grid, &weights, bias, &mut fast);
                int8_linear(SimdLevel::SCALAR, &x, m, grid, &weights, bias, &mut slow);
                assert_eq!(fast, slow, "{level} {grid:?} M {m} K {k} N {n}");
                fast.fill(f32::NAN);
                int8_linear(level, &x, m, grid, &sparse(n, k, seed), bias, &mut fast);
                assert_eq!(fast, slow, "sparse {level} {grid:?} M {m} K {k} N {n}");
            }
        }
    }

    #[test]
    fn every_path_gives_the_bits_of_the_reference_at_awkward_shapes() {
        for level in SimdLevel::available() {
            for m in [0, 1, 2, 8, 15, 16, 17, 33, 131] {
                for k in [0, 1, 3, 4, 63, 64, 65, 130, 601] {
                    for n in [0, 1, 31, 32, 33, 100] {
                        same(level, m, k, n, (m * 7 + k * 3 + n) as u64);
                    }
                }
            }
        }
    }

    /// Computes sums of products with `rten-gemm`, which shares no code with this crate.
    fn by_rten(codes: &[u8], weights: &[i8], [m, k, n]: [usize; 3]) -> Vec<i32> {
        use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, QuantParams};
        use rten_tensor::NdTensorView;
        let weights = NdTensorView::from_data([n, k], weights);
        let (mut sums, zeros) = (vec![0; m * n], vec![128; m]);
        let rows = GemmInputA::Unpacked(NdTensorView::from_data([m, k], codes));
        let options = GemmOptions { a_quant: Some(QuantParams { zero_point: &zeros }), ..Default::default() };
        let gemm = GemmExecutor::<u8, i8, i32>::default();
        gemm.gemm(&mut sums, rows, GemmInputB::Unpacked(weights.transposed()), options).unwrap();
        sums
    }

    #[test]
    fn sums_agree_with_rten_gemm() {
        for (m, k, n) in [(1, 4, 1), (3, 70, 33), (16, 64, 32), (33, 130, 70), (40, 513, 100)] {
            // A row whose largest value is 127 has scale 1. Weights have 7 bits, because `rten-gemm` saturates
            // above that without VNNI.
            let mut codes: Vec<u8> = numbers(m * k, 3).map(|bits| (bits % 255 + 1) as u8).collect();
            codes.chunks_mut(k).for_each(|row| row[0] = 255);
            let weights: Vec<i8> = numbers(n * k, 5).map(|bits| (bits % 128) as i8 - 64).collect();
            let expected = by_rten(&codes, &weights, [m, k, n]);
            let x: Vec<f32> = codes.iter().map(|&code| f32::from(code) - 128.0).collect();
            let packed = PackedInt8::new(&weights, &vec![1.0; n], n, k).unwrap();
            for level in SimdLevel::available() {
                let mut y = vec![f32::NAN; m * n];
                int8_linear(level, &x, m, ActivationGrid::Symmetric, &packed, None, &mut y);
                let sums: Vec<f32> = expected.iter().map(|&sum| sum as f32).collect();
                assert_eq!(y, sums, "{level} M {m} K {k} N {n}");
            }
        }
    }

    #[test]
    fn the_largest_sum_does_not_overflow() {
        let (x, codes) = (vec![1.0_f32; crate::MAX_DEPTH], vec![-128; crate::MAX_DEPTH]);
        let weights = PackedInt8::new(&codes, &[1.0], 1, crate::MAX_DEPTH).unwrap();
        for level in SimdLevel::available() {
            let mut y = [0.0];
            int8_linear(level, &x, 1, ActivationGrid::Asymmetric, &weights, None, &mut y);
            assert!((y[0] / -128.0 / crate::MAX_DEPTH as f32 - 1.0).abs() < 1e-5, "{level} {}", y[0]);
        }
    }

    #[test]
    fn non_finite_rows_are_nan_and_do_not_affect_others() {
        let weights = packed(40, 70, 1);
        for level in SimdLevel::available() {
            for n_rows in [3, 40] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = floats(n_rows * 70, 2);
                    x[70 + 69] = bad;
                    let mut y = vec![0.0; n_rows * 40];
                    int8_linear(level, &x, n_rows, ActivationGrid::Asymmetric, &weights, None, &mut y);
                    for (i, value) in y.iter().enumerate() {
                        assert_eq!(value.is_nan(), i / 40 == 1, "{level} {i}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "5 activations for [2, 3] and weights of [4, 3]")]
    fn mismatched_shapes_panic_with_the_shapes() {
        int8_linear(
            SimdLevel::SCALAR,
            &[0.0_f32; 5],
            2,
            ActivationGrid::Symmetric,
            &packed(4, 3, 1),
            None,
            &mut [0.0; 8],
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_path_gives_the_bits_of_the_reference(m in 0_usize..70, k in 0_usize..300, n in 0_usize..100, seed: u64) {
            for level in SimdLevel::available() {
                same(level, m, k, n, seed);
            }
        }
    }
}
