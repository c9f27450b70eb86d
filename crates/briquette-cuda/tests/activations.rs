//! Quantization of activations on the emulated GPU.

mod support;

use briquette_cuda::quantize_rows::{WARPS, encode, quantize_narrow_rows, quantize_rows, row_scales, spans};
use briquette_cuda::{ElemType, pack};
use cubecl_core::ir::FloatKind;
use cubecl_core::prelude::*;
use half::{bf16, f16};
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, floats, kernel};

/// Returns the codes, scale and zero point of a row as defined by `briquette-cpu`; codes and zero point minus
/// 128.
fn quantized(row: &[f32], is_symmetric: bool) -> (Vec<i8>, f32, i32) {
    let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    if row.iter().any(|value| !value.is_finite()) {
        return (Vec::new(), f32::NAN, 0);
    }
    let (least, most) = row.iter().fold((0.0_f32, 0.0_f32), |(least, most), &x| (least.min(x), most.max(x)));
    let width = most - least;
    let range = if width.is_finite() { width / 255.0 } else { most / 255.0 - least / 255.0 };
    let scale = if is_symmetric { largest / 127.0 } else { range };
    let (scale, inverse, zero) = match (scale == 0.0, is_symmetric) {
        (true, true) => (1.0, 1.0, 0),
        (true, false) => (1.0, 1.0, -128),
        (false, true) => (scale, 127.0 / largest, 0),
        (false, false) => (scale, 1.0 / scale, (-least / scale).round_ties_even().clamp(0.0, 255.0) as i32 - 128),
    };
    let code = |value: &f32| {
        let steps = if inverse.is_finite() { value * inverse } else { value / scale };
        (steps.round_ties_even().clamp(-32768.0, 32767.0) as i32 + zero).clamp(-128, 127) as i8
    };
    (row.iter().map(code).collect(), scale, zero)
}

/// Returns difficult rows: zeros, tiny, huge, of one sign, with values that are not finite.
fn hard_rows(n_cols: usize) -> Vec<Vec<f32>> {
    let row = floats(n_cols, 5);
    let scaled = |factor: f32| row.iter().map(|value| value * factor).collect::<Vec<f32>>();
    let with = |bad: f32| {
        let mut row = row.clone();
        row[n_cols - 1] = bad;
        row
    };
    let one_sign: Vec<f32> = row.iter().map(|value| value + 1.5).collect();
    vec![
        row.clone(),
        vec![0.0; n_cols],
        scaled(1e-38),
        scaled(1e-42),
        scaled(3.4e38),
        one_sign,
        with(f32::NAN),
        with(f32::NEG_INFINITY),
    ]
}

fn assert_rows(x: &[Vec<f32>], is_symmetric: bool, words: &[u32], scales: &[f32], zeros: &[i32]) {
    let row_words = words.len() / x.len();
    for (i, row) in x.iter().enumerate() {
        let (codes, scale, zero) = quantized(row, is_symmetric);
        assert!(scales[i] == scale || scales[i].is_nan() && scale.is_nan(), "row {i}: {} is {scale}", scales[i]);
        if !scale.is_nan() {
            let found: &[i8] = bytemuck::cast_slice(&words[i * row_words..(i + 1) * row_words]);
            assert_eq!((&found[..row.len()], zeros[i]), (&codes[..], zero), "row {i}");
        }
    }
}

/// Returns the size of the vectors that rows of `n_cols` values consist of.
const fn lanes(n_cols: usize) -> usize {
    if n_cols.is_multiple_of(4) { 4 } else { 1 }
}

fn quantize<E: CubeElement>(x: &[E], dtype: ElemType, n_rows: usize, is_symmetric: bool) -> Option<[Buffer; 3]> {
    let (gpu, n_cols) = (Gpu::sm(75), x.len() / n_rows);
    let row_words = pack::row_words(n_cols);
    let (block, lanes) = (CubeDim::new_1d(256), lanes(n_cols));
    let kernel = kernel!(gpu, block, quantize_rows::QuantizeRows::new, [b b b b], (), (), lanes, is_symmetric, dtype);
    let out = Emulated::new(gpu, Box::new(kernel))?.run(
        [n_rows as u32, 1, 1],
        [
            Buffer::of(x),
            Buffer::poisoned::<u32>(n_rows * row_words),
            Buffer::poisoned::<f32>(n_rows),
            Buffer::poisoned::<i32>(n_rows),
        ],
        [n_cols, row_words].map(|n| ByValue::of(n as u32)),
    );
    let [_, codes, scales, zeros] = out.try_into().ok()?;
    Some([codes, scales, zeros])
}

#[test]
fn narrow_rows_are_quantized_like_wide_ones() {
    let gpu = Gpu::sm(75);
    for n_cols in [1, 3, 33, 300] {
        for is_symmetric in [false, true] {
            let (rows, row_words) = (hard_rows(n_cols), pack::row_words(n_cols));
            let (block, new) = (CubeDim::new_1d(256), quantize_narrow_rows::QuantizeNarrowRows::new);
            let kernel = kernel!(gpu, block, new, [b b b b], (), (), (), lanes(n_cols), is_symmetric, F32);
            let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
            let x = rows[1..].concat();
            let n_rows = rows.len() - 1;
            let outputs = [Buffer::poisoned::<f32>(n_rows), Buffer::poisoned::<i32>(n_rows)];
            let buffers = [Buffer::of(&x), Buffer::poisoned::<u32>(n_rows * row_words)].into_iter().chain(outputs);
            let sizes = [n_rows, n_cols, row_words].map(|n| ByValue::of(n as u32));
            let out = kernel.run([n_rows.div_ceil(WARPS) as u32, 1, 1], buffers, sizes);
            let [words, scales, zeros] = [1, 2, 3].map(|at| &out[at]);
            assert_rows(&rows[1..], is_symmetric, &words.to_vec(), &scales.to_vec(), &zeros.to_vec());
        }
    }
}

#[test]
fn rows_are_quantized_as_on_the_cpu() {
    for n_cols in [1, 3, 33, 300] {
        for is_symmetric in [false, true] {
            let rows = hard_rows(n_cols);
            let Some([words, scales, zeros]) = quantize(&rows.concat(), F32, rows.len(), is_symmetric) else { return };
            assert_rows(&rows, is_symmetric, &words.to_vec::<u32>(), &scales.to_vec::<f32>(), &zeros.to_vec::<i32>());
        }
    }
}

#[test]
fn half_floats_are_quantized_like_equal_floats() {
    let rows = [floats(40, 1), floats(40, 2)];
    let x: Vec<f16> = rows.concat().into_iter().map(f16::from_f32).collect();
    let wide = x.chunks(40).map(|row| row.iter().map(|value| value.to_f32()).collect()).collect::<Vec<Vec<f32>>>();
    let Some([words, scales, zeros]) = quantize(&x, ElemType::Float(FloatKind::F16), 2, false) else { return };
    assert_rows(&wide, false, &words.to_vec::<u32>(), &scales.to_vec::<f32>(), &zeros.to_vec::<i32>());
    let x: Vec<bf16> = rows.concat().into_iter().map(bf16::from_f32).collect();
    let wide = x.chunks(40).map(|row| row.iter().map(|value| value.to_f32()).collect()).collect::<Vec<Vec<f32>>>();
    let [words, scales, zeros] = quantize(&x, ElemType::Float(FloatKind::BF16), 2, true).expect("a compiler");
    assert_rows(&wide, true, &words.to_vec::<u32>(), &scales.to_vec::<f32>(), &zeros.to_vec::<i32>());
}

#[test]
fn rows_in_parts_are_quantized_like_whole_rows() {
    let gpu = Gpu::sm(75);
    for n_cols in [700, 701] {
        assert_parts(gpu, n_cols, 256);
    }
}

fn assert_parts(gpu: Gpu, n_cols: usize, part: usize) {
    let rows = hard_rows(n_cols);
    let (n_rows, n_parts, row_words) = (rows.len(), n_cols.div_ceil(part), pack::row_words(n_cols));
    let x = rows.concat();
    let block = CubeDim::new_1d(256);
    for is_symmetric in [false, true] {
        let kernel = kernel!(gpu, block, spans::Spans::new, [b b b b], (), (), lanes(n_cols), F32);
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let n = n_rows * n_parts;
        let poisoned = || Buffer::poisoned::<f32>(n);
        let sizes = [n_cols, part].map(|n| ByValue::of(n as u32));
        let out = kernel.run(
            [n_parts as u32, n_rows as u32, 1],
            [Buffer::of(&x), poisoned(), poisoned(), Buffer::poisoned::<u32>(n)],
            sizes,
        );
        let kernel = kernel!(gpu, block, row_scales::RowScales::new, [b b b b b b], (), (), is_symmetric);
        let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
        let [_, least, most, magnitude] = <[Buffer; 4]>::try_from(out).unwrap_or_else(|_| panic!("four buffers"));
        let each = || Buffer::poisoned::<f32>(n_rows);
        let sizes = [n_rows, n_parts].map(|n| ByValue::of(n as u32));
        let out =
            kernel.run([1, 1, 1], [least, most, magnitude, each(), each(), Buffer::poisoned::<i32>(n_rows)], sizes);
        let (scales, inverses, zeros) = (out[3].to_vec::<f32>(), out[4].to_vec::<f32>(), out[5].to_vec::<i32>());
        let kernel = kernel!(gpu, block, encode::Encode::new, [b b b b b], (), (), (), lanes(n_cols), F32);
        let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
        let n_words = n_rows * row_words;
        let out = kernel.run(
            [n_words.div_ceil(256) as u32, 1, 1],
            [
                Buffer::of(&x),
                Buffer::of(&scales),
                Buffer::of(&inverses),
                Buffer::of(&zeros),
                Buffer::poisoned::<u32>(n_words),
            ],
            [n_cols, row_words, n_words].map(|n| ByValue::of(n as u32)),
        );
        assert_rows(&rows, is_symmetric, &out[4].to_vec::<u32>(), &scales, &zeros);
    }
}
