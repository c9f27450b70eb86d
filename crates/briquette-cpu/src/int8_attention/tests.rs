//! Compares attention on codes with attention by definition, in f64.

use super::*;
use crate::linear::tests::{floats, packed, sparse};
use crate::{CodeGrid, int8_linear, quantize_rows};

const DYNAMIC: [ActivationGrid; 3] = [ActivationGrid::Symmetric; 3];

/// Returns the dequantized queries, keys or values, `[tokens][n]`, and the scale of each token.
fn rounded(layers: &SelfAttention, x: &[f32], which: usize) -> (Vec<Vec<f64>>, Vec<f64>) {
    let (weights, bias) = layers.layers[which];
    let (n_tokens, n) = (layers.shape.batch * layers.shape.length, weights.n_out());
    let plain = packed(n, weights.n_in(), which as u64 + 1);
    let mut y = vec![0.0; n_tokens * n];
    int8_linear(SimdLevel::SCALAR, x, n_tokens, layers.inputs, &plain, bias, &mut y);
    let rows = quantize_rows(SimdLevel::SCALAR, &y, n_tokens, n, layers.operands[which]);
    let scales: Vec<f64> = rows.scales().iter().map(|&scale| f64::from(scale)).collect();
    let value = |row: usize, code: &u8| (f64::from(*code) - 128.0) * scales[row];
    ((0..n_tokens).map(|row| rows.row(row).iter().map(|code| value(row, code)).collect()).collect(), scales)
}

/// Returns one output by definition, and an error bound: slightly more than half a code of each attention
/// weight.
fn exact(layers: &SelfAttention, all: &[(Vec<Vec<f64>>, Vec<f64>); 3], token: usize, column: usize) -> (f64, f64) {
    let AttentionShape { length, n_heads, n_kv_heads, width, is_causal, .. } = layers.shape;
    let (first, head) = (token / length * length, column / width);
    let kv = head * n_kv_heads / n_heads * width;
    let [(q, _), (k, _), (v, v_scales)] = all;
    let is_seen = |&j: &usize| !layers.padding.get(j).copied().unwrap_or(false) && (!is_causal || j <= token);
    let seen: Vec<usize> = (first..first + length).filter(is_seen).collect();
    let dot = |j: &usize| (0..width).map(|c| q[token][head * width + c] * k[*j][kv + c]).sum::<f64>();
    let scores: Vec<f64> = seen.iter().map(|j| dot(j) / (width as f64).sqrt()).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let largest = seen.iter().zip(&weights).map(|(&j, weight)| weight * v_scales[j]).fold(0.0, f64::max);
    let value = |j: usize| v[j][kv + column % width];
    let step = |j: usize| largest / v_scales[j] / 255.0 * 0.54 * value(j).abs();
    let mean = seen.iter().zip(&weights).map(|(&j, weight)| weight * value(j)).sum::<f64>() / sum;
    (mean, seen.iter().map(|&j| step(j)).sum::<f64>() / sum + 1e-3 * mean.abs() + 1e-5)
}

/// Calls `see` with each attention layer, its tokens, and the outputs; checks that all levels give the same
/// bits.
fn for_shapes(see: impl Fn(&SelfAttention, &[f32], &[f32])) {
    let shapes =
        [(1, 1, 1, 1, 4), (2, 5, 3, 3, 8), (1, 17, 2, 1, 32), (2, 70, 1, 1, 36), (1, 33, 4, 2, 64), (1, 130, 2, 2, 32)];
    for (at, &(batch, length, n_heads, n_kv_heads, width)) in shapes.iter().chain(&shapes).enumerate() {
        let shape = AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal: at < shapes.len() };
        let (n_in, n, n_kv) = (37, n_heads * width, n_kv_heads * width);
        let (q, k, v) = (packed(n, n_in, 1), packed(n_kv, n_in, 2), sparse(n_kv, n_in, 3));
        let (mut x, bias) = (floats(batch * length * n_in, 7), floats(n, 5));
        // The keys and values of one token are tiny.
        x.iter_mut().skip(n_in).take(n_in).for_each(|x| *x *= 1e-37);
        let some: Vec<bool> = (0..batch * length).map(|i| i % length > length / 2).collect();
        // Some values are beyond the fixed grids.
        let fixed = [0.05, 0.03, 0.02].map(|scale| ActivationGrid::Fixed(CodeGrid { scale, zero: 128 }));
        let cases = [(&[][..], DYNAMIC), (&some, DYNAMIC), (&[], fixed), (&some, fixed)];
        for (padding, operands) in cases {
            let layers = SelfAttention {
                layers: [(&q, Some(&bias)), (&k, None), (&v, None)],
                inputs: ActivationGrid::Asymmetric.into(),
                operands,
                shape,
                padding,
            };
            let mut first = None;
            for level in SimdLevel::available() {
                let mut out = vec![f32::NAN; batch * length * n];
                int8_self_attention(level, &x, &layers, &mut out);
                assert_eq!(first.get_or_insert(out.clone()), &out, "{level} {shape:?}");
            }
            see(&layers, &x, &first.unwrap());
        }
    }
}

#[test]
fn every_path_gives_the_same_bits_within_half_a_code_of_each_weight() {
    for_shapes(|layers, x, out| {
        let all = [0, 1, 2].map(|which| rounded(layers, x, which));
        let n = layers.layers[0].0.n_out();
        for (i, &value) in out.iter().enumerate() {
            let (exact, bound) = exact(layers, &all, i / n, i % n);
            assert!((f64::from(value) - exact).abs() <= bound, "{:?} {i}: {value} {exact} {bound}", layers.shape);
        }
    });
}

#[test]
fn non_finite_values_reach_the_queries_that_attend_to_them() {
    let shape = AttentionShape { batch: 2, length: 40, n_heads: 1, n_kv_heads: 1, width: 8, is_causal: false };
    let layers = [1, 2, 3].map(|seed| packed(8, 5, seed));
    let [q, k, v] = layers.each_ref().map(|weights| (weights as &dyn Int8Weights, None));
    let mut layers = SelfAttention {
        layers: [q, k, v],
        inputs: ActivationGrid::Symmetric.into(),
        operands: DYNAMIC,
        shape,
        padding: &[],
    };
    let mut x = floats(2 * 40 * 5, 3);
    x[3 * 5] = f32::NAN;
    let hidden: Vec<bool> = (0..80).map(|token| token == 3 || token >= 40).collect();
    for level in SimdLevel::available() {
        for padding in [&[][..], &hidden] {
            layers.padding = padding;
            let mut out = [0.0; 2 * 40 * 8];
            int8_self_attention(level, &x, &layers, &mut out);
            for (token, row) in out.chunks(8).enumerate() {
                let is_bad = if padding.is_empty() { token < 40 } else { token == 3 || token >= 40 };
                assert!(row.iter().all(|value| value.is_nan() == is_bad), "{level} {token} {row:?}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "heads of 6")]
fn head_widths_not_divisible_by_four_panic() {
    let shape = AttentionShape { batch: 1, length: 2, n_heads: 1, n_kv_heads: 1, width: 6, is_causal: false };
    let weights = packed(6, 4, 1);
    let layers = [(&weights as &dyn Int8Weights, None); 3];
    let layers =
        SelfAttention { layers, inputs: ActivationGrid::Symmetric.into(), operands: DYNAMIC, shape, padding: &[] };
    int8_self_attention(SimdLevel::SCALAR, &[0.0; 8], &layers, &mut [0.0; 12]);
}

#[test]
#[should_panic(expected = "operands on")]
fn fixed_grids_with_another_zero_panic() {
    let shape = AttentionShape { batch: 1, length: 2, n_heads: 1, n_kv_heads: 1, width: 4, is_causal: false };
    let weights = packed(4, 4, 1);
    let layers = [(&weights as &dyn Int8Weights, None); 3];
    let operands = [ActivationGrid::Fixed(CodeGrid { scale: 1.0, zero: 127 }); 3];
    let layers = SelfAttention { layers, inputs: ActivationGrid::Symmetric.into(), operands, shape, padding: &[] };
    int8_self_attention(SimdLevel::SCALAR, &[0.0; 8], &layers, &mut [0.0; 8]);
}
