//! Patches of images and depthwise convolutions on the emulated GPU.

mod support;

use briquette_cuda::conv::{depthwise, patches};
use briquette_cuda::epilogue::EpilogueFlags;
use briquette_cuda::pack;
use cubecl_core::prelude::*;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, codes, floats, kernel, steps};

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
    fn image(&self) -> usize {
        CHANNELS * self.size[0] * self.size[1]
    }

    fn image_words(&self) -> usize {
        pack::row_words(CHANNELS * self.size[0] * self.size[1])
    }

    fn scalars(&self) -> Vec<ByValue> {
        let ([h, w], [oh, ow], [kh, kw]) = (self.size, self.out, self.kernel);
        let ([sy, sx], [top, left], [dy, dx]) = (self.stride, self.padding, self.dilation);
        let all = [CHANNELS, h, w, self.image_words(), oh, ow, kh, kw, sy, sx, top, left, dy, dx];
        all.into_iter().map(|n| ByValue::of(n as u32)).collect()
    }

    /// Returns the code at a tap, or the zero point.
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

const CONVS: [Conv; 2] = [
    Conv { size: [5, 7], out: [5, 7], kernel: [3, 3], stride: [1, 1], padding: [1, 1], dilation: [1, 1] },
    Conv { size: [8, 5], out: [2, 2], kernel: [3, 2], stride: [2, 3], padding: [0, 1], dilation: [2, 1] },
];
/// The zero points of the two images.
const ZEROS: [i32; 2] = [17, -100];

#[test]
fn patches_have_the_codes_of_their_taps() {
    let gpu = Gpu::sm(75);
    for conv in CONVS {
        let (n_pixels, taps, image) = (conv.out[0] * conv.out[1], conv.kernel[0] * conv.kernel[1], conv.image());
        let images = codes(2 * image, 0, 5);
        // Patches of the last two channels, starting at the second pixel.
        let (first, first_channel, depth) = (1, 1, 2 * taps);
        let (n_rows, row_words) = (2 * n_pixels - first, pack::row_words(depth));
        let block = CubeDim::new_1d(256);
        let kernel = kernel!(gpu, block, patches::Patches::new, [b b b], (), (), (), (), (), steps());
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let sizes = [first, first_channel, depth, row_words, n_rows * row_words].map(|n| ByValue::of(n as u32));
        let out = kernel.run(
            [(n_rows * row_words).div_ceil(256) as u32, 1, 1],
            [
                Buffer::of(&pack::rows(&images, 2, image)),
                Buffer::of(&ZEROS),
                Buffer::poisoned::<u32>(n_rows * row_words),
            ],
            sizes.into_iter().chain(conv.scalars()),
        );
        let found = out[2].to_vec::<u32>();
        let found: &[i8] = bytemuck::cast_slice(&found);
        for row in 0..n_rows {
            let (n, pixel) = ((row + first) / n_pixels, (row + first) % n_pixels);
            for input in 0..depth {
                let one = &images[n * image..(n + 1) * image];
                let expected = conv.tap(one, first_channel + input / taps, pixel, input % taps, ZEROS[n]);
                assert_eq!(i32::from(found[row * row_words * 4 + input]), expected, "row {row}, input {input}");
            }
        }
    }
}

#[test]
fn depthwise_convolutions_are_the_sums_of_their_taps() {
    let gpu = Gpu::sm(75);
    for conv in CONVS {
        let (n_pixels, taps, image) = (conv.out[0] * conv.out[1], conv.kernel[0] * conv.kernel[1], conv.image());
        let images = codes(2 * image, 0, 5);
        let (weights, scales) = (codes(CHANNELS * taps, 5, 9), floats(CHANNELS, 3));
        let (image_scales, shift) = ([0.5_f32, 2.0], floats(CHANNELS, 4));
        let finish = EpilogueFlags { scale: false, shift: true, adds: false, relu: true };
        let block = CubeDim::new_1d(256);
        let kernel = kernel!(gpu, block, depthwise::Depthwise::new, [b b b b b b b b], (), (), steps(), finish, F32);
        let Some(kernel) = Emulated::new(gpu, Box::new(kernel)) else { return };
        let n = 2 * CHANNELS * n_pixels;
        let sizes = [n, pack::row_words(taps)].map(|n| ByValue::of(n as u32));
        let [images_in, weights_in] = [(&images, 2, image), (&weights, CHANNELS, taps)]
            .map(|(codes, rows, cols)| Buffer::of(&pack::rows(codes, rows, cols)));
        let zeros = Buffer::of(&ZEROS);
        let [scales_in, shift_in] = [&scales, &shift].map(|values| Buffer::of(&values[..]));
        let out = kernel.run(
            [n.div_ceil(256) as u32, 1, 1],
            [
                images_in,
                weights_in,
                Buffer::of(&image_scales),
                zeros,
                scales_in,
                Buffer::of(&scales),
                shift_in,
                Buffer::poisoned::<f32>(n),
            ],
            sizes.into_iter().chain(conv.scalars()),
        );
        for (at, found) in out[7].to_vec::<f32>().into_iter().enumerate() {
            let (n, channel, pixel) = (at / CHANNELS / n_pixels, at / n_pixels % CHANNELS, at % n_pixels);
            let one = &images[n * image..(n + 1) * image];
            let product = |tap: usize| {
                (conv.tap(one, channel, pixel, tap, ZEROS[n]) - ZEROS[n]) * i32::from(weights[channel * taps + tap])
            };
            let sum = (0..taps).map(product).sum::<i32>();
            let expected = (sum as f32 * image_scales[n] * scales[channel] + shift[channel]).max(0.0);
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{at}: {found} is {expected}");
        }
    }
}
