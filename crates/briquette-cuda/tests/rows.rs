//! Norms, softmax, attention and rotary positions on the emulated GPU.

mod support;

use briquette_cuda::attention::{self, AttentionForm, attend_few};
use briquette_cuda::attention_mma::{self, attend_mma};
use briquette_cuda::norm::{self, NormSteps, norm_rows};
use briquette_cuda::rotary::{self, rotate_rows};
use briquette_cuda::softmax::{self, ScoreSteps, softmax_rows};
use cubecl_core::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, attention_layout, floats, kernel};

fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    assert_within(1e-5, found, expected, what);
}

fn assert_within(bound: f64, found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < bound, "{what}: {found} is {expected} at {at}");
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

/// The kernels of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Few,
    Matrices,
}

/// An attention with random values.
struct Case {
    images: usize,
    heads: usize,
    kept: usize,
    length: usize,
    first: usize,
    n_keys: usize,
    width: usize,
    window: usize,
    steps: ScoreSteps,
    /// The capacity of a layout with heads before tokens.
    capacity: Option<usize>,
}

const SCALE: f32 = 0.9;
const CAP: f32 = 2.5;

impl Case {
    /// Returns the strides of keys and values between images, heads and tokens.
    fn strides(&self) -> [usize; 3] {
        match self.capacity {
            Some(capacity) => [self.kept * capacity * self.width, capacity * self.width, self.width],
            None => [self.n_keys * self.kept * self.width, self.width, self.kept * self.width],
        }
    }

    fn inputs(&self) -> [Vec<f32>; 4] {
        let n_kept = self.images * self.strides()[0];
        let q = floats(self.images * self.length * self.heads * self.width, 1);
        // The second image sees a single key.
        let is_hidden = |at: usize| if at < self.n_keys { at % 5 == 3 } else { at > self.n_keys };
        let hidden = (0..self.images * self.n_keys).map(|at| f32::from(u8::from(is_hidden(at)))).collect();
        // These numbers are exact in TF32.
        let exact = |x: &f32| (x * 128.0).round() / 128.0;
        let [k, v] = [2, 3].map(|seed| floats(n_kept, seed).iter().map(exact).collect());
        [q.iter().map(|q| 4.0 * exact(q)).collect(), k, v, hidden]
    }

    /// Computes the outputs from all scores, in f64.
    fn expected(&self, [q, k, v, hidden]: &[Vec<f32>; 4]) -> Vec<f64> {
        let [image_stride, head_stride, token_stride] = self.strides();
        let row = |at: usize| {
            let (image, token, head) = (at / self.heads / self.length, at / self.heads % self.length, at % self.heads);
            let kept = image * image_stride + head / (self.heads / self.kept) * head_stride;
            let weight = |key: usize| {
                let (q, k) = (&q[at * self.width..], &k[kept + key * token_stride..]);
                let products = q.iter().zip(k).take(self.width).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let score = products.sum::<f64>() * f64::from(SCALE);
                let score = if self.steps.has_cap { (score / f64::from(CAP)).tanh() * f64::from(CAP) } else { score };
                let (query, has_window) = (self.first + token, self.steps.has_window);
                let is_later = key > query && (self.steps.is_causal || (has_window && key - query >= self.window));
                let is_outside = is_later || (has_window && key + self.window <= query);
                let is_hidden = self.steps.hides && hidden[image * self.n_keys + key] > 0.0;
                if is_hidden || is_outside { 0.0 } else { score.exp() }
            };
            let weights: Vec<f64> = (0..self.n_keys).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            assert!(sum > 0.0, "every query sees a key");
            let output = move |col: usize| {
                let values = (0..self.n_keys).map(|key| f64::from(v[kept + key * token_stride + col]));
                values.zip(&weights).map(|(value, weight)| value * weight).sum::<f64>() / sum
            };
            (0..self.width).map(output).collect::<Vec<_>>()
        };
        (0..self.images * self.length * self.heads).flat_map(row).collect()
    }

    fn run(&self, inputs: &[Vec<f32>; 4], by: By) -> Option<Vec<f32>> {
        let (n_rows, vectors) = (self.heads / self.kept * self.length, self.width / 4);
        let (gpu, warps, rows, cube_rows) = match by {
            By::Few => (Gpu::sm(75), attention::WARPS, n_rows.next_power_of_two(), n_rows),
            By::Matrices => (Gpu::sm(80), attention_mma::WARPS, 16, attention_mma::CUBE_ROWS),
        };
        let form = AttentionForm { steps: self.steps, vectors, rows };
        let (block, shape) = (CubeDim::new_2d(32, warps as u32), attention_layout());
        let kernel: Box<dyn CubeKernel> = match by {
            By::Few => Box::new(kernel!(gpu, block, attend_few::AttendFew::new, [b b b b b], shape, (), (), form, F32)),
            By::Matrices => {
                Box::new(kernel!(gpu, block, attend_mma::AttendMma::new, [b b b b b], shape, (), (), form, F32))
            }
        };
        let (kernel, blocks) = (Emulated::new(gpu, kernel)?, n_rows.div_ceil(cube_rows));
        let buffers =
            inputs.iter().map(|values| Buffer::of(&values[..])).chain([Buffer::poisoned::<f32>(inputs[0].len())]);
        let [image, head, token] = self.strides().map(|stride| stride / 4);
        let sizes = [self.heads, self.kept, self.length, self.first, self.n_keys, image, head, token, self.window];
        let scalars = sizes.map(|n| ByValue::of(n as u32)).into_iter().chain([ByValue::of(SCALE), ByValue::of(CAP)]);
        let out = kernel.run([(self.images * self.kept) as u32, blocks as u32, 1], buffers, scalars);
        Some(out[4].to_vec::<f32>())
    }
}

#[test]
fn attention_agrees_with_plain_sums_under_every_mask_and_layout() {
    for bits in 0..16_u32 {
        let [hides, is_causal, has_window, has_cap] = [1, 2, 4, 8].map(|bit| bits & bit > 0);
        // Together, they could hide every key of a query.
        if hides && (is_causal || has_window) {
            continue;
        }
        let steps = ScoreSteps { hides, is_causal, has_window, has_cap };
        let widths = if bits == 0 { &[8, 40, 64, 80, 128][..] } else { &[32] };
        for &width in widths {
            // 75 queries of two heads share keys, over several tiles of rows and of keys.
            let many = Case {
                images: 2,
                heads: 4,
                kept: 2,
                length: 75,
                first: 3,
                n_keys: 78,
                width,
                window: 20,
                steps,
                capacity: None,
            };
            let few = Case { heads: 6, length: 2, first: 301, n_keys: 303, capacity: Some(310), ..many };
            for (case, by) in [(&many, By::Matrices), (&few, By::Few)] {
                let inputs = case.inputs();
                let Some(found) = case.run(&inputs, by) else { return };
                // Weights are rounded to eleven bits.
                let bound = if by == By::Matrices { 2.5e-4 } else { 1e-5 };
                let what = format!("width {width}, {by:?}, {steps:?}");
                assert_within(bound, &found, &case.expected(&inputs), &what);
            }
        }
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
