//! 2-D convolution of 8-bit codes, as matrix products with tiles of patches.

mod code_product;
mod depthwise;
mod epilogue;
mod fixed;
mod image;
mod packed;
#[cfg(test)]
mod tests;
mod tile;
mod unpacked;
mod unscaled;

use crate::activations::{ActivationElement, ActivationGrid};
pub use crate::float::Conv2dShape;
use crate::panels::threads_for;
use crate::simd::{OutputBlock, PANEL};
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;
use depthwise::Taps;
pub use epilogue::{ConvEpilogue, OutputBounds};
pub use fixed::{FixedConv2d, fixed_conv2d};
use image::Image;
pub(crate) use image::channels_last;
use packed::ConvPanels;
pub use packed::PackedConv2d;
use std::ops::Range;
use tile::PatchTile;
use unpacked::Unpacked;

/// Output pixels in a tile.
const TILE: usize = 256;
/// Output channels that are computed together; with this number, a tile stays in the L2 cache.
const OUTPUTS: usize = 8 * PANEL;
/// The fewest pixels per thread; with fewer, threads share the output channels instead.
const FEW_PIXELS: usize = 64;
/// Below this many multiplications per image, waking another thread costs more than it saves.
const PAYS: usize = 1 << 22;

/// A convolution with its epilogue.
#[derive(Debug, Clone, Copy)]
pub struct Int8Conv2d<'a> {
    /// The packed weights.
    pub weights: &'a PackedConv2d,
    /// Stride, padding, dilation and channels.
    pub shape: Conv2dShape,
    /// The grid for quantizing images.
    pub grid: ActivationGrid,
    /// The epilogue applied to outputs.
    pub epilogue: ConvEpilogue<'a>,
    /// The order of the inputs and of the outputs.
    pub orders: [ImageOrder; 2],
}

/// The order of the values of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageOrder {
    /// `[channel, height, width]`.
    #[default]
    ChannelsFirst,
    /// `[height, width, channel]`, without transposition before and after a product.
    ChannelsLast,
}

/// Convolves images `x` `[n, in, height, width]` to `y` `[n, out, out height, out width]`, each in its order.
///
/// Uses the instructions of `level`. Each image has its own scale and zero point; padding is exactly zero. In a
/// [pointwise](Conv2dShape::is_pointwise) convolution, each pixel has its own. An image or pixel with a NaN or an infinity
/// gives NaN. `n`, channels and pixels may be 0.
///
/// # Panics
/// - If the lengths of `x`, `y` or the epilogue do not match the shape.
/// - If the shape does not match the weights.
pub fn int8_conv2d<T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    size: [usize; 3],
    conv: &Int8Conv2d,
    y: &mut [f32],
) {
    match &conv.weights.panels {
        ConvPanels::Dense(weights) => each_image(level, x, size, conv, weights, y),
        ConvPanels::Sparse(weights) => each_image(level, x, size, conv, weights, y),
    }
}

fn each_image<T: ActivationElement, W: Int8Weights>(
    level: SimdLevel,
    x: &[T],
    [n_images, height, width]: [usize; 3],
    conv: &Int8Conv2d,
    weights: &W,
    y: &mut [f32],
) {
    let Int8Conv2d { shape, grid, epilogue, orders, .. } = *conv;
    assert_eq!(conv.weights.dims, shape.weight_dims(), "weights and {shape:?}");
    epilogue.assert_channels(shape.n_out);
    let n_values = shape.n_in * height * width;
    assert_eq!(x.len(), n_images * n_values, "{} inputs for [{n_images}, {}, {height}, {width}]", x.len(), shape.n_in);
    let [out_height, out_width] = shape.out_size([height, width]);
    let n_pixels = out_height * out_width;
    let expected = [n_images, shape.n_out, out_height, out_width];
    assert_eq!(y.len(), expected.iter().product::<usize>(), "{} outputs for {expected:?}", y.len());
    if shape.n_out * n_pixels == 0 {
        return;
    }
    let how = How::of(&shape, weights);
    for (i, y) in y.chunks_exact_mut(shape.n_out * n_pixels).enumerate() {
        let quantize = match (orders[0], shape.is_pointwise()) {
            (ImageOrder::ChannelsFirst, false) => Image::new,
            (ImageOrder::ChannelsFirst, true) => Image::by_pixel,
            (ImageOrder::ChannelsLast, false) => Image::of_last,
            (ImageOrder::ChannelsLast, true) => Image::of_last_by_pixel,
        };
        let image = quantize(level, &x[i * n_values..(i + 1) * n_values], shape.n_in, [height, width], grid);
        let run = ImageConv { level, shape: &shape, weights, image: &image, how: &how, epilogue };
        let n_threads = threads_for(shape.depth() * shape.n_out * n_pixels, PAYS);
        match orders[1] {
            ImageOrder::ChannelsFirst => run.pixels(0, OutputBlock::new(y, shape.n_out, n_pixels), n_threads),
            ImageOrder::ChannelsLast => {
                by_threads(0, y, [shape.n_out, n_threads], &|first, out: &mut [f32], n| run.pixels_last(first, out, n))
            }
        }
    }
}

/// Passes parts of the pixels `[pixel, channel]` to `convolve`, each with its first pixel and the threads for it.
fn by_threads<T: Send>(
    first: usize,
    out: &mut [T],
    [n_out, n_threads]: [usize; 2],
    convolve: &(dyn Fn(usize, &mut [T], usize) + Sync),
) {
    let n_pixels = out.len() / n_out;
    if n_threads < 2 || n_pixels < PANEL {
        return convolve(first, out, n_threads);
    }
    let half = (n_pixels / 2).next_multiple_of(PANEL / 2);
    let (left, right) = out.split_at_mut(half * n_out);
    rayon::join(
        || by_threads(first, left, [n_out, n_threads / 2], convolve),
        || by_threads(first + half, right, [n_out, n_threads.div_ceil(2)], convolve),
    );
}

/// The algorithm of a convolution.
enum How {
    /// Matrix products with panels of weights, which must not cross group boundaries.
    Panels,
    /// One dot product per output, for groups of few outputs: most of a panel would belong to other groups.
    Rows(Unpacked),
    /// Tap by tap, for depthwise convolutions.
    Depthwise(Taps),
}

impl How {
    fn of(shape: &Conv2dShape, weights: &impl Int8Weights) -> Self {
        if shape.groups == 1 || (shape.n_out / shape.groups).is_multiple_of(PANEL) {
            return Self::Panels;
        }
        if shape.is_depthwise() {
            return Self::Depthwise(Taps::new(weights));
        }
        Self::Rows(Unpacked::new(weights))
    }
}

/// The convolution of one image.
struct ImageConv<'a, W> {
    level: SimdLevel,
    shape: &'a Conv2dShape,
    weights: &'a W,
    image: &'a Image<'a>,
    how: &'a How,
    epilogue: ConvEpilogue<'a>,
}

impl<W: Int8Weights> ImageConv<'_, W> {
    /// Computes as many pixels as `out` has columns, starting at `first`.
    fn pixels(&self, mut first: usize, mut out: OutputBlock, n_threads: usize) {
        if n_threads > 1 && out.n_cols() >= 2 * FEW_PIXELS {
            let half = (out.n_cols() / 2).next_multiple_of(PANEL);
            let (left, right) = out.split_cols(half);
            rayon::join(
                || self.pixels(first, left, n_threads / 2),
                || self.pixels(first + half, right, n_threads.div_ceil(2)),
            );
            return;
        }
        let mut tile = PatchTile::default();
        let n_tiles = out.n_cols().div_ceil(TILE);
        let size = out.n_cols().div_ceil(n_tiles.max(1)).next_multiple_of(PANEL);
        while out.n_cols() > 0 {
            let n = size.min(out.n_cols());
            let (now, later) = out.split_cols(n);
            self.tile(first..first + n, &mut tile, now, n_threads);
            (first, out) = (first + n, later);
        }
    }

    /// Computes the pixels of `out` `[pixel, channel]`, starting at `first`.
    fn pixels_last(&self, first: usize, out: &mut [f32], n_threads: usize) {
        let n_out = self.shape.n_out;
        self.each_tile(first, out, n_threads, |values, channels, out| {
            self.epilogue.write_rows(self.level, values, channels, (out, n_out));
        });
    }

    /// Passes the outputs `[pixel, channel]` of each tile of pixels and range of channels to `each`, with the part of `out`
    /// `[pixel, channel]` for the tile.
    fn each_tile<T>(
        &self,
        mut first: usize,
        out: &mut [T],
        n_threads: usize,
        mut each: impl FnMut(&[f32], Range<usize>, &mut [T]),
    ) {
        let (n_out, mut tile) = (self.shape.n_out, PatchTile::default());
        let n_pixels = out.len() / n_out;
        let size = n_pixels.div_ceil(n_pixels.div_ceil(TILE).max(1)).next_multiple_of(PANEL);
        for out in out.chunks_mut(size * n_out) {
            let pixels = first..first + out.len() / n_out;
            first = pixels.end;
            self.values(pixels, &mut tile, n_threads, &mut |values, channels| each(values, channels, out));
        }
    }

    fn tile(&self, pixels: Range<usize>, tile: &mut PatchTile, out: OutputBlock, n_threads: usize) {
        let mut rest = Some(out);
        self.values(pixels, tile, n_threads, &mut |values, channels| {
            if let Some(out) = rest.take() {
                let (now, later) = out.split_rows(channels.len());
                self.epilogue.write(self.level, values, channels.start, now);
                rest = Some(later);
            }
        });
    }

    /// Computes the outputs of some pixels, and passes `[pixel, channel]` of each range of channels to `each`, in their order.
    fn values(
        &self,
        pixels: Range<usize>,
        tile: &mut PatchTile,
        n_threads: usize,
        each: &mut dyn FnMut(&[f32], Range<usize>),
    ) {
        let n_out = self.shape.n_out / self.shape.groups;
        if let How::Depthwise(taps) = self.how {
            taps.convolve(self.level, self.shape, self.image, pixels, &mut tile.values);
            return each(&tile.values, 0..self.shape.n_out);
        }
        for group in 0..self.shape.groups {
            tile.gather(self.shape, self.image, group, pixels.clone());
            for first in (group * n_out..(group + 1) * n_out).step_by(OUTPUTS) {
                let n = OUTPUTS.min((group + 1) * n_out - first);
                match self.how {
                    How::Rows(rows) => tile.multiply_rows(self.level, rows, first..first + n),
                    _ => tile.multiply(self.level, self.weights, first / PANEL, n, n_threads),
                }
                each(&tile.values, first..first + n);
            }
        }
    }
}
