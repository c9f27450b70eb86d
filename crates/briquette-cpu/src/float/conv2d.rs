//! 2-D convolution in f32 as products of weights and tiles of patches, and its gradients.

mod patches;
#[cfg(test)]
mod tests;

use crate::conv2d::Conv2dShape;
use crate::panels::threads_for;
use crate::simd::{MatrixView, OutputBlock, multiply};
use patches::{ImageTile, PARTS, Patches, resized};
use rayon::prelude::*;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 21;

/// A convolution of `n_images` images of equal size, with one group.
#[derive(Debug, Clone, Copy)]
pub struct FloatConv2d {
    /// Channels, kernel, stride, padding and dilation.
    pub shape: Conv2dShape,
    /// Height and width of the input images.
    pub size: [usize; 2],
    /// Number of images.
    pub n_images: usize,
}

impl FloatConv2d {
    /// Returns the number of output elements.
    pub fn n_outputs(&self) -> usize {
        self.n_images * self.shape.n_out * self.n_pixels()
    }

    /// Returns the number of input elements.
    pub fn n_inputs(&self) -> usize {
        self.n_images * self.shape.n_in * self.size[0] * self.size[1]
    }

    /// Returns the number of pixels in an output image.
    fn n_pixels(&self) -> usize {
        self.shape.out_size(self.size).iter().product()
    }

    /// Computes `y[b, o, p] = Σ w[o, i, ky, kx] * x[b, i, source of (p, ky, kx)] + bias[o]`, with padding 0.
    ///
    /// # Panics
    /// If the lengths disagree, or there is more than one group.
    pub fn forward(&self, x: &[f32], weights: &[f32], bias: &[f32]) -> Vec<f32> {
        let (n_out, depth) = (self.shape.n_out, self.check(x, weights));
        assert_eq!(bias.len(), n_out, "a bias for {n_out} outputs");
        let (patches, mut y) = (Patches::new(self.shape, self.size, self.n_images), vec![0.0; self.n_outputs()]);
        if y.is_empty() {
            return y;
        }
        let n_threads = threads_for(y.len() * depth, PAYS);
        let (weights, tiles) = (MatrixView::new(weights, n_out, depth), patches.tiles());
        let (outputs, together) = (self.split(&mut y, &tiles), tiles.len().div_ceil(n_threads));
        tiles.par_iter().zip(outputs).with_min_len(together).for_each_init(
            ConvScratch::default,
            |buffers, (tile, outputs)| {
                let (columns, n) = (patches.gather(x, tile, &mut buffers.columns), patches.n_pixels(tile));
                let values = resized(&mut buffers.outputs, n_out * n);
                multiply(weights, MatrixView::new(columns, depth, n), false, values);
                let n_pixels = n / tile.images.len();
                for (i, mut output) in outputs.into_iter().enumerate() {
                    for (o, row) in values.chunks_exact(n).enumerate() {
                        let sums = row[i * n_pixels..].iter().map(|value| value + bias[o]);
                        output.row(o).iter_mut().zip(sums).for_each(|(y, sum)| *y = sum);
                    }
                }
            },
        );
        y
    }

    /// Computes `dw[o, i, ky, kx] = Σ dy[b, o, p] * x[b, i, source of (p, ky, kx)]`.
    ///
    /// # Panics
    /// See [`FloatConv2d::forward`].
    pub fn weight_grad(&self, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let (n_out, depth) = (self.shape.n_out, self.check_output(dy));
        assert_eq!(x.len(), self.n_inputs(), "images of {:?}", self.size);
        let patches = Patches::new(self.shape, self.size, self.n_images);
        let tiles = patches.tiles();
        let part = |tiles: &[ImageTile]| {
            let (mut buffers, mut sum) = (ConvScratch::default(), vec![0.0; n_out * depth]);
            for tile in tiles {
                let (columns, n) = (patches.gather(x, tile, &mut buffers.columns), patches.n_pixels(tile));
                let dy = self.gather_outputs(dy, tile, &mut buffers.outputs);
                multiply(
                    MatrixView::new(dy, n_out, n),
                    MatrixView::new(columns, depth, n).transposed(),
                    true,
                    &mut sum,
                );
            }
            sum
        };
        let parts: Vec<_> = tiles.par_chunks(tiles.len().div_ceil(PARTS).max(1)).map(part).collect();
        let zeros = || vec![0.0; n_out * depth];
        parts.into_iter().reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect()).unwrap_or_else(zeros)
    }

    /// Computes `dx[b, i, source] = Σ w[o, i, ky, kx] * dy[b, o, p]` over the outputs of each source pixel.
    ///
    /// # Panics
    /// See [`FloatConv2d::forward`].
    pub fn input_grad(&self, weights: &[f32], dy: &[f32]) -> Vec<f32> {
        let (n_out, depth) = (self.shape.n_out, self.check_output(dy));
        let (patches, mut dx) = (Patches::new(self.shape, self.size, self.n_images), vec![0.0; self.n_inputs()]);
        let weights = MatrixView::new(weights, n_out, depth).transposed();
        let tiles = patches.tiles();
        let of_same_images: Vec<&[ImageTile]> = tiles.chunk_by(|a, b| a.images == b.images).collect();
        let n_image = self.n_inputs() / self.n_images.max(1);
        let n_chunk = of_same_images.first().map_or(1, |tiles| tiles[0].images.len() * n_image).max(1);
        let together = of_same_images.len().div_ceil(rayon::current_num_threads());
        dx.par_chunks_mut(n_chunk).zip(of_same_images).with_min_len(together).for_each_init(
            ConvScratch::default,
            |buffers, (dx, tiles)| {
                for tile in tiles {
                    let (dy, n) = (self.gather_outputs(dy, tile, &mut buffers.outputs), patches.n_pixels(tile));
                    let columns = resized(&mut buffers.columns, depth * n);
                    multiply(weights, MatrixView::new(dy, n_out, n), false, columns);
                    patches.scatter(columns, tile, dx);
                }
            },
        );
        dx
    }

    /// Returns the outputs of a tile of `dy` as a matrix `[out, pixel]`.
    fn gather_outputs<'b>(&self, dy: &[f32], tile: &ImageTile, buffer: &'b mut Vec<f32>) -> &'b [f32] {
        let (n_out, n_pixels) = (self.shape.n_out, self.n_pixels());
        let width = self.shape.out_size(self.size)[1];
        let pixels = tile.rows.start * width..tile.rows.end * width;
        buffer.clear();
        for o in 0..n_out {
            for image in tile.images.clone() {
                buffer.extend_from_slice(&dy[(image * n_out + o) * n_pixels..][pixels.clone()]);
            }
        }
        buffer
    }

    /// Splits `y` into the parts of each tile: one block `[out, pixel]` per image.
    fn split<'y>(&self, y: &'y mut [f32], tiles: &[ImageTile]) -> Vec<Vec<OutputBlock<'y>>> {
        let width = self.shape.out_size(self.size)[1];
        let (n_out, n_pixels) = (self.shape.n_out, self.n_pixels());
        let mut images = y.chunks_mut((n_out * n_pixels).max(1)).map(|image| OutputBlock::new(image, n_out, n_pixels));
        let mut rest = None;
        let mut take = |tile: &ImageTile| {
            let whole = rest.take().or_else(|| images.next()).expect("tiles of these images");
            let (now, later) = whole.split_cols(tile.rows.len() * width);
            rest = (later.n_cols() > 0).then_some(later);
            now
        };
        tiles.iter().map(|tile| tile.images.clone().map(|_| take(tile)).collect()).collect()
    }

    /// Checks the lengths and returns the number of inputs of a patch.
    fn check(&self, x: &[f32], weights: &[f32]) -> usize {
        let [n_out, n_in, height, width] = self.shape.weight_dims();
        assert_eq!(self.shape.groups, 1, "a convolution of one group");
        assert_eq!(weights.len(), n_out * n_in * height * width, "weights of {:?}", self.shape);
        assert_eq!(x.len(), self.n_inputs(), "images of {:?}", self.size);
        n_in * height * width
    }

    fn check_output(&self, dy: &[f32]) -> usize {
        assert_eq!(dy.len(), self.n_outputs(), "outputs for images of {:?}", self.size);
        self.shape.depth()
    }
}

/// Memory of a thread, reused for each tile.
#[derive(Default)]
struct ConvScratch {
    columns: Vec<f32>,
    outputs: Vec<f32>,
}
