//! Launches of kernels for patches of images and depthwise convolutions.

use super::{CodeWords, Floats, Product, arg};
use crate::conv::{self, ConvGeometryLaunch};
use crate::conv2d_steps::Conv2dSteps;
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use cubecl_core::prelude::CubeDim;

impl Conv2dSteps {
    fn launch(&self) -> ConvGeometryLaunch {
        let (s, [out_height, out_width]) = (self, self.out_size());
        let image_words = crate::pack::row_words(s.channels * s.size[0] * s.size[1]);
        let sizes = [s.channels, s.size[0], s.size[1], image_words, out_height, out_width, s.kernel[0], s.kernel[1]];
        let [a, b, c, d, e, f, g, h] = sizes.map(u32_of);
        let steps = [s.stride[0], s.stride[1], s.padding[0][0], s.padding[1][0], s.dilation[0], s.dilation[1]];
        let [i, j, k, l, m, n] = steps.map(u32_of);
        ConvGeometryLaunch::new(a, b, c, d, e, f, g, h, i, j, k, l, m, n)
    }
}

/// Gathers `n_rows` patches as rows of `row_words` words, starting at pixel `first` and channel `channel`.
pub(crate) fn patches(
    gpu: &Gpu,
    images: &CodeWords,
    zeros: &DeviceBuffer,
    [first, n_rows, channel]: [usize; 3],
    [depth, row_words]: [usize; 2],
    steps: &Conv2dSteps,
) -> CodeWords {
    let rows = CodeWords::empty(gpu, n_rows, row_words);
    // SAFETY: one unit per word; taps outside an image are not read.
    unsafe {
        conv::patches::launch_unchecked(
            gpu.client(),
            cubes(groups(n_rows * row_words, conv::UNITS), 1),
            CubeDim::new_1d(conv::UNITS as u32),
            images.arg(1),
            arg(zeros, 4),
            rows.arg(1),
            u32_of(first),
            u32_of(channel),
            u32_of(depth),
            u32_of(row_words),
            u32_of(n_rows * row_words),
            steps.launch(),
        );
    }
    rows
}

/// Computes a depthwise convolution.
pub(crate) fn depthwise(gpu: &Gpu, product: &Product, words: &DeviceBuffer, steps: &Conv2dSteps, y: &Floats) {
    let (rows, weights) = (product.rows, product.weights);
    let [scale, shift] = product.epilogue.args(weights.n_out(), &weights.scales);
    let n = y.n_rows * y.n_cols;
    // SAFETY: one unit per output; taps outside an image are not read.
    unsafe {
        conv::depthwise::launch_unchecked(
            gpu.client(),
            cubes(groups(n, conv::UNITS), 1),
            CubeDim::new_1d(conv::UNITS as u32),
            product.codes.arg(1),
            arg(words, 4),
            arg(&rows.scales, 4),
            arg(&rows.zeros, 4),
            arg(&weights.scales, 4),
            scale,
            shift,
            y.arg(1),
            u32_of(n),
            u32_of(weights.row_words()),
            steps.launch(),
            product.epilogue.flags(),
            y.dtype,
        );
    }
}
