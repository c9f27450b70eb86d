//! Weights on the emulated GPU: conversion to floats, expansion of sparse weights, products of a few rows.

mod support;

use briquette_cuda::bitmask::{BLOCK_INPUTS, BLOCK_ROWS, BLOCKS, expand};
use briquette_cuda::decode::decode;
use briquette_cuda::few_rows::{OUTPUTS, WARPS, few_rows_int4, few_rows_int8};
use briquette_cuda::{ElemType, pack};
use cubecl_core::prelude::*;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, codes, floats, kernel};

#[test]
fn weight_only_products_agree_with_plain_sums() {
    let gpu = Gpu::sm(75);
    for (rows, [m, n, k]) in [(1, [1, 5, 8]), (2, [3, 17, 72]), (4, [3, 6, 1096]), (8, [5, 16, 256]), (8, [13, 9, 64])]
    {
        let (x, scales, shift) = (floats(m * k, 3), floats(n, 5), floats(n, 7));
        let cubes = [n.div_ceil(WARPS * OUTPUTS) as u32, m.div_ceil(rows) as u32, 1];
        let int8 = codes(n * k, 4, 1);
        let block = CubeDim::new_2d(32, WARPS as u32);
        let kernel = kernel!(gpu, block, few_rows_int8::FewRowsInt8::new, [b b b b b], (), (), (), (), rows, true, F32);
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let out = kernel.run(
            cubes,
            [
                Buffer::of(&x),
                Buffer::of(&pack::rows(&int8, n, k)),
                Buffer::of(&scales),
                Buffer::of(&shift),
                Buffer::poisoned::<f32>(m * n),
            ],
            [m, n, k / 4, pack::row_words(k) / 4].map(|n| ByValue::of(n as u32)),
        );
        let weight = |col: usize, i: usize| f32::from(int8[col * k + i]) * scales[col];
        assert_near(&out[4].to_vec::<f32>(), [m, n, k], &x, weight, &shift);

        let group = 8;
        let (int4, scales) = (int4(n * k), floats(n * k.div_ceil(group), 9));
        let kernel = kernel!(gpu, block, few_rows_int4::FewRowsInt4::new, [b b b b b], (), (), (), (), rows, true, F32);
        let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
        let out = kernel.run(
            cubes,
            [
                Buffer::of(&x),
                Buffer::of(&pack::rows_of_int4(&int4, k)),
                Buffer::of(&scales),
                Buffer::of(&shift),
                Buffer::poisoned::<f32>(m * n),
            ],
            [m, n, k / 8, group / 8].map(|n| ByValue::of(n as u32)),
        );
        let weight = |col: usize, i: usize| f32::from(int4[col * k + i]) * scales[col * k.div_ceil(group) + i / group];
        assert_near(&out[4].to_vec::<f32>(), [m, n, k], &x, weight, &shift);
    }
}

fn int4(n: usize) -> Vec<i8> {
    codes(n, 0, 3).into_iter().map(|code| code >> 4).collect()
}

fn assert_near(y: &[f32], [m, n, k]: [usize; 3], x: &[f32], weight: impl Fn(usize, usize) -> f32, shift: &[f32]) {
    for (at, y) in y.iter().enumerate() {
        let (row, col) = (at / n, at % n);
        let sum: f64 = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(weight(col, i))).sum();
        let expected = sum + f64::from(shift[col]);
        assert!((f64::from(*y) - expected).abs() < 1e-3 * k as f64, "{m} {n} {k}: {y} is {expected}");
    }
}

#[test]
fn sparse_blocks_expand_to_their_rows() {
    let gpu = Gpu::sm(75);
    let block = CubeDim::new_2d(32, BLOCKS as u32);
    let kernel = kernel!(gpu, block, expand::Expand::new, [b b b b], (), (), (), ());
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    for [n, k] in [[1, 1], [16, 64], [17, 65], [40, 200]] {
        let weights = codes(n * k, 2, 1);
        let (blocks, row_words) = (pack::blocks(&weights, n, k), pack::row_words(k));
        let row_blocks = k.div_ceil(BLOCK_INPUTS);
        let n_blocks = n.div_ceil(BLOCK_ROWS) * row_blocks;
        let out = kernel.run(
            [n_blocks.div_ceil(BLOCKS) as u32, 1, 1],
            [
                Buffer::of(&blocks.bits),
                Buffer::of(&blocks.values),
                Buffer::of(&blocks.bases),
                Buffer::poisoned::<u32>(n * row_words),
            ],
            [n, row_words / 4, row_blocks, n_blocks].map(|n| ByValue::of(n as u32)),
        );
        assert_eq!(out[3].to_vec::<u32>(), pack::rows(&weights, n, k), "[{n}, {k}]");
    }
}

fn run_decode(words: &[u32], scales: &[f32], sizes: [usize; 4], bits: usize, dtype: ElemType) -> Option<Vec<Buffer>> {
    let gpu = Gpu::sm(75);
    let kernel = kernel!(gpu, CubeDim::new_1d(256), decode::Decode::new, [b b b], (), (), (), (), bits, dtype);
    let n = sizes[0] * sizes[1];
    let cubes = [n.div_ceil(256) as u32, 1, 1];
    let buffers = [Buffer::of(words), Buffer::of(scales), Buffer::poisoned::<f32>(n)];
    Some(Emulated::new(gpu, Box::new(kernel))?.run(cubes, buffers, sizes.map(|n| ByValue::of(n as u32))))
}

#[test]
fn weights_decode_to_their_floats() {
    let (n, k) = (7, 45);
    let (weights, scales) = (codes(n * k, 4, 1), floats(n, 2));
    let words = pack::rows(&weights, n, k);
    let Some(out) = run_decode(&words, &scales, [n, k, pack::row_words(k), k], 8, F32) else { return };
    let expected: Vec<f32> = weights.iter().enumerate().map(|(i, &code)| f32::from(code) * scales[i / k]).collect();
    assert_eq!(out[2].to_vec::<f32>(), expected);
    let (weights, group) = (int4(n * k), 20);
    let scales = floats(n * k.div_ceil(group), 2);
    let words = pack::rows_of_int4(&weights, k);
    let out = run_decode(&words, &scales, [n, k, k.div_ceil(8), group], 4, F32).expect("a compiler");
    let scale = |i: usize| scales[i / k * k.div_ceil(group) + i % k / group];
    let expected: Vec<f32> = weights.iter().enumerate().map(|(i, &code)| f32::from(code) * scale(i)).collect();
    assert_eq!(out[2].to_vec::<f32>(), expected);
}
