//! Norms, softmax and rotary positions on the emulated GPU.

mod support;

use briquette_cuda::norm::{self, NormSteps, norm_rows};
use briquette_cuda::rotary::{self, rotate_rows};
use briquette_cuda::softmax::{self, ScoreSteps, softmax_rows};
use cubecl_core::prelude::*;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, floats, kernel};

fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-5, "{what}: {found} is {expected} at {at}");
    }
}

#[test]
fn norms_agree_with_plain_sums() {
    for (n_rows, n_cols) in [(1, 4), (5, 132), (9, 256)] {
        for bits in 0..8_u32 {
            let steps = NormSteps { adds: bits & 1 > 0, centers: bits & 2 > 0, shifts: bits & 4 > 0 };
            let (x, shortcut) = (floats(n_rows * n_cols, 1), floats(n_rows * n_cols, 2));
            let (gamma, beta) = (floats(n_cols, 3), floats(n_cols, 4));
            let (gpu, block) = (Gpu::sm(75), CubeDim::new_2d(32, norm::ROWS as u32));
            let kernel = kernel!(gpu, block, norm_rows::NormRows::new, [b b b b b], (), (), (), steps, F32);
            let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
            let inputs = [&x, &shortcut, &gamma, &beta].map(|values| Buffer::of(&values[..]));
            let buffers = inputs.into_iter().chain([Buffer::poisoned::<f32>(n_rows * n_cols)]);
            let scalars = [ByValue::of(n_rows as u32), ByValue::of((n_cols / 4) as u32), ByValue::of(1e-3_f32)];
            let out = kernel.run([n_rows.div_ceil(norm::ROWS) as u32, 1, 1], buffers, scalars);
            let sums =
                x.iter().zip(&shortcut).map(|(x, shortcut)| f64::from(if steps.adds { x + shortcut } else { *x }));
            let sums: Vec<f64> = sums.collect();
            let n = n_cols as f64;
            let expected = sums.chunks(n_cols).flat_map(|row| {
                let mean = if steps.centers { row.iter().sum::<f64>() / n } else { 0.0 };
                let size = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-3).sqrt();
                let (gamma, beta) = (&gamma, &beta);
                row.iter().enumerate().map(move |(col, x)| {
                    let shift = if steps.shifts { f64::from(beta[col]) } else { 0.0 };
                    (x - mean) / size * f64::from(gamma[col]) + shift
                })
            });
            assert_near(&out[4].to_vec::<f32>(), &expected.collect::<Vec<_>>(), &format!("{steps:?}"));
        }
    }
}

#[test]
fn softmax_agrees_with_plain_sums_under_every_mask() {
    let ([images, heads, length, n_cols, first, window], scale, cap) = ([2, 3, 5, 70, 52, 9], 0.7_f32, 2.5_f32);
    let (image_rows, n_rows) = (heads * length, images * heads * length);
    let scores: Vec<f32> = floats(n_rows * n_cols, 1).iter().map(|score| score * 8.0).collect();
    // All keys of the second image are hidden but one.
    let hidden: Vec<f32> =
        (0..images * n_cols).map(|at| f32::from(u8::from(at % 3 == 0 || at > n_cols + 61))).collect();
    for bits in 0..16_u32 {
        let [hides, is_causal, has_window, has_cap] = [1, 2, 4, 8].map(|bit| bits & bit > 0);
        let steps = ScoreSteps { hides, is_causal, has_window, has_cap };
        let (gpu, block) = (Gpu::sm(75), CubeDim::new_2d(32, softmax::ROWS as u32));
        let new = softmax_rows::SoftmaxRows::new;
        let kernel = kernel!(gpu, block, new, [b b b], (), (), (), (), (), (), (), (), steps, F32);
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let buffers = [Buffer::of(&scores), Buffer::of(&hidden), Buffer::poisoned::<f32>(n_rows * n_cols)];
        let sizes = [n_rows, n_cols, image_rows, length, first, window].map(|n| ByValue::of(n as u32));
        let scalars = sizes.into_iter().chain([ByValue::of(scale), ByValue::of(cap)]);
        let out = kernel.run([n_rows.div_ceil(softmax::ROWS) as u32, 1, 1], buffers, scalars);
        let expected = (0..n_rows).flat_map(|row| {
            let query = first + row % length;
            let weight = |key: usize| {
                let score = f64::from(scores[row * n_cols + key] * scale);
                let score = if has_cap { (score / f64::from(cap)).tanh() * f64::from(cap) } else { score };
                let is_hidden = hides && hidden[row / image_rows * n_cols + key] > 0.0;
                let is_later = key > query && (is_causal || (has_window && key - query >= window));
                let is_outside = is_later || (has_window && key + window <= query);
                if is_hidden || is_outside { 0.0 } else { score.exp() }
            };
            let weights: Vec<f64> = (0..n_cols).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(move |weight| if sum > 0.0 { weight / sum } else { 1.0 / n_cols as f64 })
        });
        assert_near(&out[2].to_vec::<f32>(), &expected.collect::<Vec<_>>(), &format!("{steps:?}"));
    }
}

#[test]
fn heads_rotate_by_the_angles_of_their_tokens() {
    let [n_tokens, heads, half, n_positions] = [6, 3, 5, 3];
    let (row, n) = (heads * half * 2, n_tokens * heads * half * 2);
    let (x, sin, cos) = (floats(n, 1), floats(n_positions * half, 2), floats(n_positions * half, 3));
    let gpu = Gpu::sm(75);
    let kernel = kernel!(gpu, CubeDim::new_1d(rotary::UNITS as u32), rotate_rows::RotateRows::new, [b b b b], (), (), (), (), F32);
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let inputs = [&x, &sin, &cos].map(|values| Buffer::of(&values[..]));
    let buffers = inputs.into_iter().chain([Buffer::poisoned::<f32>(n)]);
    let sizes = [n / 2, row / 2, half, n_positions].map(|n| ByValue::of(n as u32));
    let out = kernel.run([(n / 2).div_ceil(rotary::UNITS) as u32, 1, 1], buffers, sizes);
    let expected = (0..n).map(|at| {
        let (token, i) = (at / row, at % (2 * half));
        let (pair, start) = (i % half, at - i);
        let angle = token % n_positions * half + pair;
        let [sin, cos] = [sin[angle], cos[angle]].map(f64::from);
        let [a, b] = [x[start + pair], x[start + pair + half]].map(f64::from);
        if i < half { a * cos - b * sin } else { b * cos + a * sin }
    });
    assert_near(&out[3].to_vec::<f32>(), &expected.collect::<Vec<_>>(), "rotation");
}
