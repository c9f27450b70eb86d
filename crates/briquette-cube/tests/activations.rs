//! Activations, tables and patches of images, as an emulated GPU makes them.

mod support;

use briquette_cube::conv::{StepsCompilationArg, depthwise, patches};
use briquette_cube::decode::{lookup, lookup_bitmask};
use briquette_cube::finish::Finish;
use briquette_cube::quantize_rows::{encode, quantize_rows, row_scales, spans};
use briquette_cube::{ElemType, pack};
use cubecl_core::ir::{FloatKind, IntKind};
use cubecl_core::prelude::*;
use half::{bf16, f16};
use support::cuda::{Gpu, buffer};
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, codes, floats};

/// Codes less 128, the scale and the zero point less 128 of a row, as `briquette-kernels` defines them.
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

/// Rows that are hard: of zeros, tiny, huge, of one sign, with what is not finite.
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

fn quantize<E: CubeElement>(x: &[E], dtype: ElemType, n_rows: usize, is_symmetric: bool) -> Option<[Buffer; 3]> {
    let (gpu, n_cols) = (Gpu::sm(75), x.len() / n_rows);
    let row_words = pack::row_words(n_cols);
    let b = || buffer();
    let kernel = quantize_rows::QuantizeRows::new(
        gpu.settings(CubeDim::new_1d(256)),
        gpu.properties(),
        gpu.target(),
        b(),
        b(),
        b(),
        b(),
        (),
        (),
        is_symmetric,
        dtype,
    );
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
fn half_floats_are_quantized_as_the_floats_they_are() {
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
fn rows_by_parts_are_the_whole_rows() {
    let gpu = Gpu::sm(75);
    let (n_cols, part) = (700, 256);
    let rows = hard_rows(n_cols);
    let (n_rows, n_parts, row_words) = (rows.len(), n_cols.div_ceil(part), pack::row_words(n_cols));
    let (x, b) = (rows.concat(), || buffer());
    let settings = || gpu.settings(CubeDim::new_1d(256));
    for is_symmetric in [false, true] {
        let kernel = spans::Spans::new(settings(), gpu.properties(), gpu.target(), b(), b(), b(), b(), (), (), F32);
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let n = n_rows * n_parts;
        let poisoned = || Buffer::poisoned::<f32>(n);
        let sizes = [n_cols, part].map(|n| ByValue::of(n as u32));
        let out = kernel.run(
            [n_parts as u32, n_rows as u32, 1],
            [Buffer::of(&x), poisoned(), poisoned(), Buffer::poisoned::<u32>(n)],
            sizes,
        );
        let kernel = row_scales::RowScales::new(
            settings(),
            gpu.properties(),
            gpu.target(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            (),
            (),
            is_symmetric,
        );
        let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
        let [_, least, most, magnitude] = out.try_into().ok().expect("four buffers");
        let each = || Buffer::poisoned::<f32>(n_rows);
        let sizes = [n_rows, n_parts].map(|n| ByValue::of(n as u32));
        let out =
            kernel.run([1, 1, 1], [least, most, magnitude, each(), each(), Buffer::poisoned::<i32>(n_rows)], sizes);
        let (scales, inverses, zeros) = (out[3].to_vec::<f32>(), out[4].to_vec::<f32>(), out[5].to_vec::<i32>());
        let kernel =
            encode::Encode::new(settings(), gpu.properties(), gpu.target(), b(), b(), b(), b(), b(), (), (), (), F32);
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

#[test]
fn rows_of_tables_are_looked_up_and_others_are_nan() {
    let (gpu, [n_rows, n_cols]) = (Gpu::sm(75), [9, 300]);
    let (table, scales) = (codes(n_rows * n_cols, 2, 1), floats(n_rows, 3));
    let ids: Vec<i32> = vec![0, 8, 3, 9, -1, 3];
    let types = [ElemType::Int(IntKind::I32), F32];
    let b = || buffer();
    let settings = |units| gpu.settings(CubeDim::new_1d(units));
    let kernel =
        lookup::Lookup::new(settings(256), gpu.properties(), gpu.target(), b(), b(), b(), b(), (), (), (), types);
    let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
    let out = || Buffer::poisoned::<f32>(ids.len() * n_cols);
    let cubes = [ids.len() as u32, 1, 1];
    let dense = kernel.run(
        cubes,
        [Buffer::of(&ids), Buffer::of(&pack::rows(&table, n_rows, n_cols)), Buffer::of(&scales), out()],
        [n_rows, n_cols, pack::row_words(n_cols)].map(|n| ByValue::of(n as u32)),
    );
    let kernel = lookup_bitmask::LookupBitmask::new(
        settings(32),
        gpu.properties(),
        gpu.target(),
        b(),
        b(),
        b(),
        b(),
        b(),
        b(),
        (),
        (),
        (),
        types,
    );
    let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
    let packed = pack::row_bitmasks(&table, n_cols);
    let sparse = kernel.run(
        cubes,
        [
            Buffer::of(&ids),
            Buffer::of(&packed.bits),
            Buffer::of(&packed.values),
            Buffer::of(&packed.bases),
            Buffer::of(&scales),
            out(),
        ],
        [n_rows, n_cols, n_cols.div_ceil(32)].map(|n| ByValue::of(n as u32)),
    );
    for found in [dense[3].to_vec::<f32>(), sparse[5].to_vec::<f32>()] {
        for (&id, found) in ids.iter().zip(found.chunks(n_cols)) {
            let row = usize::try_from(id).ok().filter(|row| *row < n_rows);
            for (col, found) in found.iter().enumerate() {
                match row {
                    Some(row) => assert_eq!(*found, f32::from(table[row * n_cols + col]) * scales[row]),
                    None => assert!(found.is_nan()),
                }
            }
        }
    }
}

/// A convolution of two images of three channels.
struct Conv {
    size: [usize; 2],
    out: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

const CHANNELS: usize = 3;

impl Conv {
    fn image_words(&self) -> usize {
        pack::row_words(CHANNELS * self.size[0] * self.size[1])
    }

    fn scalars(&self) -> Vec<ByValue> {
        let ([h, w], [oh, ow], [kh, kw]) = (self.size, self.out, self.kernel);
        let ([sy, sx], [top, left], [dy, dx]) = (self.stride, self.padding, self.dilation);
        let all = [CHANNELS, h, w, self.image_words(), oh, ow, kh, kw, sy, sx, top, left, dy, dx];
        all.into_iter().map(|n| ByValue::of(n as u32)).collect()
    }

    /// The code under a tap, or the zero point.
    fn tap(&self, image: &[i8], channel: usize, pixel: usize, tap: usize, zero: i32) -> i32 {
        let at = |i: usize, pixel: usize, tap: usize| {
            let at = pixel * self.stride[i] + tap * self.dilation[i];
            at.checked_sub(self.padding[i]).filter(|at| *at < self.size[i])
        };
        let y = at(0, pixel / self.out[1], tap / self.kernel[1]);
        let x = at(1, pixel % self.out[1], tap % self.kernel[1]);
        match (y, x) {
            (Some(y), Some(x)) => i32::from(image[(channel * self.size[0] + y) * self.size[1] + x]),
            _ => zero,
        }
    }
}

const fn steps() -> StepsCompilationArg {
    StepsCompilationArg {
        channels: (),
        height: (),
        width: (),
        image_words: (),
        out_height: (),
        out_width: (),
        kernel_height: (),
        kernel_width: (),
        stride_y: (),
        stride_x: (),
        top: (),
        left: (),
        dilation_y: (),
        dilation_x: (),
    }
}

#[test]
fn patches_and_depthwise_convolutions_see_their_taps() {
    let gpu = Gpu::sm(75);
    let convs = [
        Conv { size: [5, 7], out: [5, 7], kernel: [3, 3], stride: [1, 1], padding: [1, 1], dilation: [1, 1] },
        Conv { size: [8, 5], out: [2, 2], kernel: [3, 2], stride: [2, 3], padding: [0, 1], dilation: [2, 1] },
    ];
    let settings = || gpu.settings(CubeDim::new_1d(256));
    for conv in convs {
        let (n_pixels, taps) = (conv.out[0] * conv.out[1], conv.kernel[0] * conv.kernel[1]);
        let image = CHANNELS * conv.size[0] * conv.size[1];
        let (images, zeros) = (codes(2 * image, 0, 5), [17_i32, -100]);
        let words = pack::rows(&images, 2, image);
        let b = || buffer();

        // Patches of the last two channels, from the second pixel on.
        let (first, first_channel, depth) = (1, 1, 2 * taps);
        let (n_rows, row_words) = (2 * n_pixels - first, pack::row_words(depth));
        let kernel = patches::Patches::new(
            settings(),
            gpu.properties(),
            gpu.target(),
            b(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            (),
            steps(),
        );
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let sizes = [first, first_channel, depth, row_words, n_rows * row_words].map(|n| ByValue::of(n as u32));
        let out = kernel.run(
            [(n_rows * row_words).div_ceil(256) as u32, 1, 1],
            [Buffer::of(&words), Buffer::of(&zeros), Buffer::poisoned::<u32>(n_rows * row_words)],
            sizes.into_iter().chain(conv.scalars()),
        );
        let found = out[2].to_vec::<u32>();
        let found: &[i8] = bytemuck::cast_slice(&found);
        for row in 0..n_rows {
            let (n, pixel) = ((row + first) / n_pixels, (row + first) % n_pixels);
            for input in 0..depth {
                let one = &images[n * image..(n + 1) * image];
                let expected = conv.tap(one, first_channel + input / taps, pixel, input % taps, zeros[n]);
                assert_eq!(i32::from(found[row * row_words * 4 + input]), expected, "row {row}, input {input}");
            }
        }

        let (weights, scales) = (codes(CHANNELS * taps, 5, 9), floats(CHANNELS, 3));
        let (image_scales, shift) = ([0.5_f32, 2.0], floats(CHANNELS, 4));
        let finish = Finish { scale: false, shift: true, adds: false, relu: true };
        let kernel = depthwise::Depthwise::new(
            settings(),
            gpu.properties(),
            gpu.target(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            (),
            (),
            steps(),
            finish,
            F32,
        );
        let kernel = Emulated::new(gpu, Box::new(kernel)).expect("a compiler");
        let n = 2 * CHANNELS * n_pixels;
        let sizes = [n, pack::row_words(taps)].map(|n| ByValue::of(n as u32));
        let weight_words = pack::rows(&weights, CHANNELS, taps);
        let vectors = [
            Buffer::of(&image_scales),
            Buffer::of(&zeros),
            Buffer::of(&scales),
            Buffer::of(&scales),
            Buffer::of(&shift),
        ];
        let out = kernel.run(
            [n.div_ceil(256) as u32, 1, 1],
            [Buffer::of(&words), Buffer::of(&weight_words)]
                .into_iter()
                .chain(vectors)
                .chain([Buffer::poisoned::<f32>(n)]),
            sizes.into_iter().chain(conv.scalars()),
        );
        for (at, found) in out[7].to_vec::<f32>().into_iter().enumerate() {
            let (n, channel, pixel) = (at / CHANNELS / n_pixels, at / n_pixels % CHANNELS, at % n_pixels);
            let one = &images[n * image..(n + 1) * image];
            let product = |tap: usize| {
                (conv.tap(one, channel, pixel, tap, zeros[n]) - zeros[n]) * i32::from(weights[channel * taps + tap])
            };
            let sum = (0..taps).map(product).sum::<i32>();
            let expected = (sum as f32 * image_scales[n] * scales[channel] + shift[channel]).max(0.0);
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{at}: {found} is {expected}");
        }
    }
}
