//! 2-D convolution in 8-bit codes, as products of tiles of patches.

mod shape;
#[cfg(test)]
mod tests;
mod tile;

use crate::code_rows::CodeRows;
use crate::packed::{PackedInt8, check_depth};
use crate::path::{Path, active_path};
use crate::quantize_rows::{Activation, ActivationGrid, QuantizedRows};
use crate::simd::Block;
use crate::sparse::SparseInt8;
use crate::weights::Int8Weights;
use briquette_core::Result;
pub use shape::Conv2dShape;
use tile::{Image, Tile};

/// Output pixels that are made at once.
const TILE: usize = 128;
/// Below this many multiplications of an image, waking another thread costs more than it saves.
const PAYS: usize = 1 << 22;
/// Groups with fewer outputs would mostly multiply the padding of a panel.
const FEW_OUTPUTS: usize = 16;

/// The weights of a convolution, laid out by how they will be used.
#[derive(Clone, Debug)]
pub struct PackedConv2d {
    shape: Conv2dShape,
    weights: Weights,
}

#[derive(Clone)]
enum Weights {
    /// Panels for each group; `[out in group, ky, kx, in]`.
    Dense(Vec<PackedInt8>),
    Sparse(Vec<SparseInt8>),
    /// A row for each output, for groups of few outputs.
    Rows(CodeRows, Vec<f32>),
    /// A row of channels for each tap, where every channel is its own group.
    Depthwise(CodeRows, Vec<f32>),
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dense(_) => "dense panels",
            Self::Sparse(_) => "sparse panels",
            Self::Rows(..) => "rows",
            Self::Depthwise(..) => "depthwise",
        })
    }
}

impl PackedConv2d {
    /// Packs codes `[out, in / groups, ky, kx]` with one scale for each output; `is_sparse` keeps only those not zero.
    ///
    /// # Errors
    /// Refuses a patch of more than [`MAX_DEPTH`](crate::MAX_DEPTH) inputs.
    ///
    /// # Panics
    /// If the lengths disagree with the shape, or the groups do not divide the channels.
    pub fn new(codes: &[i8], scales: &[f32], shape: Conv2dShape, is_sparse: bool) -> Result<Self> {
        shape.assert_valid();
        let depth = shape.depth();
        crate::packed::check_lengths(codes.len(), scales.len(), shape.n_out, depth);
        check_depth(depth)?;
        let codes = shape.channels_last(codes);
        let rows = if is_sparse { CodeRows::bitmask } else { CodeRows::dense };
        let n_out = shape.n_out / shape.groups;
        let group =
            |g: usize| (&codes[g * n_out * depth..(g + 1) * n_out * depth], &scales[g * n_out..(g + 1) * n_out]);
        let weights = if shape.is_depthwise() {
            let taps = shape.transpose_taps(&codes);
            Weights::Depthwise(rows(&taps, depth, shape.n_out), scales.to_vec())
        } else if shape.groups > 1 && n_out < FEW_OUTPUTS {
            Weights::Rows(rows(&codes, shape.n_out, depth), scales.to_vec())
        } else if is_sparse {
            let pack = |g| SparseInt8::new(group(g).0, group(g).1, n_out, depth);
            Weights::Sparse((0..shape.groups).map(pack).collect::<Result<_>>()?)
        } else {
            let pack = |g| PackedInt8::new(group(g).0, group(g).1, n_out, depth);
            Weights::Dense((0..shape.groups).map(pack).collect::<Result<_>>()?)
        };
        Ok(Self { shape, weights })
    }

    /// What the convolution is.
    pub const fn shape(&self) -> &Conv2dShape {
        &self.shape
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        match &self.weights {
            Weights::Dense(groups) => groups.iter().map(Int8Weights::n_bytes).sum(),
            Weights::Sparse(groups) => groups.iter().map(Int8Weights::n_bytes).sum(),
            Weights::Rows(rows, scales) | Weights::Depthwise(rows, scales) => rows.n_bytes() + 4 * scales.len(),
        }
    }
}

/// Convolves images `x` `[n, in, height, width]` to `y` `[n, out, out height, out width]`.
///
/// Each image has its own scale and zero point; padding is exactly zero. An image with a NaN or an infinity gives one of
/// NaN. No images, channels or pixels are no error.
///
/// # Panics
/// If the lengths of `x`, `bias` or `y` disagree with the shape.
pub fn int8_conv2d<T: Activation>(
    x: &[T],
    [n_images, height, width]: [usize; 3],
    grid: ActivationGrid,
    weights: &PackedConv2d,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    int8_conv2d_on(active_path(), x, [n_images, height, width], grid, weights, bias, y);
}

/// As [`int8_conv2d`], with the instructions of `path`.
///
/// # Panics
/// As [`int8_conv2d`].
pub fn int8_conv2d_on<T: Activation>(
    path: Path,
    x: &[T],
    [n_images, height, width]: [usize; 3],
    grid: ActivationGrid,
    weights: &PackedConv2d,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let shape = &weights.shape;
    let (n_in, n_out, [out_height, out_width]) = (shape.n_in, shape.n_out, shape.out_size([height, width]));
    assert_eq!(
        x.len(),
        n_images * n_in * height * width,
        "{} inputs for [{n_images}, {n_in}, {height}, {width}]",
        x.len()
    );
    let n_pixels = out_height * out_width;
    assert_eq!(
        y.len(),
        n_images * n_out * n_pixels,
        "{} outputs for [{n_images}, {n_out}, {out_height}, {out_width}]",
        y.len()
    );
    assert!(bias.is_none_or(|bias| bias.len() == n_out), "a bias of {:?} for {n_out} outputs", bias.map(<[f32]>::len));
    if n_out * n_pixels == 0 {
        return;
    }
    let (mut codes, n_values) = (QuantizedRows::default(), n_in * height * width);
    let pays = shape.depth() * n_out * n_pixels >= PAYS;
    let n_threads = if pays { rayon::current_num_threads() } else { 1 };
    for (i, y) in y.chunks_exact_mut(n_out * n_pixels).enumerate() {
        codes.fill(path, &x[i * n_values..(i + 1) * n_values], n_values, 1, grid);
        let image = Image::new(&codes, n_in, [height, width]);
        let conv = Conv { path, weights, image: &image, bias };
        conv.tiles(0, Block::new(y, n_out, n_pixels), n_threads);
    }
}

struct Conv<'a> {
    path: Path,
    weights: &'a PackedConv2d,
    image: &'a Image,
    bias: Option<&'a [f32]>,
}

impl Conv<'_> {
    /// Makes the pixels from `first` on, as many as `out` has columns for.
    fn tiles(&self, mut first: usize, mut out: Block, n_threads: usize) {
        if n_threads > 1 && out.n_cols() > TILE {
            let half = (out.n_cols() / 2).next_multiple_of(TILE);
            let (left, right) = out.split_cols(half);
            rayon::join(
                || self.tiles(first, left, n_threads / 2),
                || self.tiles(first + half, right, n_threads.div_ceil(2)),
            );
            return;
        }
        let mut tile = Tile::default();
        while out.n_cols() > 0 {
            let n = TILE.min(out.n_cols());
            let (now, later) = out.split_cols(n);
            self.tile(first..first + n, &mut tile, now);
            (first, out) = (first + n, later);
        }
    }

    fn tile(&self, pixels: std::ops::Range<usize>, tile: &mut Tile, out: Block) {
        let (path, shape) = (self.path, &self.weights.shape);
        match &self.weights.weights {
            Weights::Dense(groups) => {
                self.groups(pixels, tile, out, |group, tile, bias| tile.multiply(path, &groups[group], bias));
            }
            Weights::Sparse(groups) => {
                self.groups(pixels, tile, out, |group, tile, bias| tile.multiply(path, &groups[group], bias));
            }
            Weights::Rows(rows, scales) => self.groups(pixels, tile, out, |group, tile, bias| {
                let n_out = shape.n_out / shape.groups;
                tile.multiply_rows(path, rows, scales, group * n_out..(group + 1) * n_out, bias);
            }),
            Weights::Depthwise(taps, scales) => {
                tile.depthwise(path, shape, self.image, pixels, taps, scales, self.bias);
                tile.transpose_to(out);
            }
        }
    }

    /// Gathers the patches of each group, multiplies them by its weights and writes its channels.
    fn groups(
        &self,
        pixels: std::ops::Range<usize>,
        tile: &mut Tile,
        mut out: Block,
        multiply: impl Fn(usize, &mut Tile, Option<&[f32]>),
    ) {
        let shape = &self.weights.shape;
        let n_out = shape.n_out / shape.groups;
        for group in 0..shape.groups {
            tile.gather(shape, self.image, group, pixels.clone());
            multiply(group, tile, self.bias.map(|bias| &bias[group * n_out..(group + 1) * n_out]));
            let (now, later) = out.split_rows(n_out);
            tile.transpose_to(now);
            out = later;
        }
    }
}
