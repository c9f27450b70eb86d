//! Patches of images as columns of a matrix, and the reverse.

use crate::conv2d::Conv2dShape;
use std::ops::Range;

/// The largest number of parts of the work, and of the sum for the weight gradient. It is fixed, so that the
/// bits of the result do not depend on the number of threads.
pub(super) const PARTS: usize = 8;

/// Floats in the patches of a tile, few enough to stay in the L2 cache together with the weights.
const TILE: usize = 1 << 18;

/// The fewest pixels of a part; a product of fewer does not fill the vector registers.
const PIXELS: usize = 64;

/// Rows of the outputs of some images: all rows of several images, or some rows of one.
#[derive(Debug, Clone)]
pub(super) struct ImageTile {
    pub(super) images: Range<usize>,
    pub(super) rows: Range<usize>,
}

/// The patches of a convolution: `[in * ky * kx, pixel]`, with the pixels of a tile ordered by image.
pub(super) struct Patches {
    shape: Conv2dShape,
    size: [usize; 2],
    n_images: usize,
    out: [usize; 2],
}

/// The part of one image channel that a tile reads, with zero padding.
struct PaddedTile {
    width: usize,
    values: Vec<f32>,
    /// The rows inside the image. The first of them is row `first_row` of the image.
    rows: Range<usize>,
    first_row: usize,
    /// The columns inside the image. The first of them is column 0 of the image.
    cols: Range<usize>,
}

impl Patches {
    pub(super) fn new(shape: Conv2dShape, size: [usize; 2], n_images: usize) -> Self {
        Self { shape, size, n_images, out: shape.out_size(size) }
    }

    /// Returns tiles that cover all outputs, image by image, independent of the number of threads.
    pub(super) fn tiles(&self) -> Vec<ImageTile> {
        let ([height, width], n_images) = (self.out, self.n_images);
        if height * width == 0 {
            return vec![];
        }
        let (all, shares) = (n_images * height, (n_images * height * width / PIXELS).clamp(1, PARTS));
        let n_rows = (TILE / (self.shape.depth() * width).max(1)).min(all.div_ceil(shares)).max(1);
        let n_together = n_rows / height;
        if n_together > 0 {
            let tile = |image| ImageTile { images: image..(image + n_together).min(n_images), rows: 0..height };
            return (0..n_images).step_by(n_together).map(tile).collect();
        }
        let tile = |image, row| ImageTile { images: image..image + 1, rows: row..(row + n_rows).min(height) };
        (0..n_images).flat_map(|image| (0..height).step_by(n_rows).map(move |row| tile(image, row))).collect()
    }

    /// Returns the patches of a tile of images `x`.
    pub(super) fn gather<'b>(&self, x: &[f32], tile: &ImageTile, columns: &'b mut Vec<f32>) -> &'b [f32] {
        let columns = resized(columns, self.shape.depth() * self.n_pixels(tile));
        let (mut window, [height, width]) = (self.window(tile), self.size);
        let (down, step) = (self.shape.stride[0] * window.width, self.shape.stride[1]);
        for (i, image) in tile.images.clone().enumerate() {
            for channel in 0..self.shape.n_in {
                let plane = &x[(image * self.shape.n_in + channel) * height * width..][..height * width];
                window.for_rows(width, |padded, pixels| copy(&plane[pixels], 1, padded));
                self.for_taps(tile, [i, channel], &window, |run, source| {
                    copy_rows(&window.values[source..], [down, step], &mut columns[run], self.out[1]);
                });
            }
        }
        columns
    }

    /// Adds the patches of a tile to their source pixels; `x` has the images of the tile.
    pub(super) fn scatter(&self, columns: &[f32], tile: &ImageTile, x: &mut [f32]) {
        let (mut window, [height, width]) = (self.window(tile), self.size);
        let (down, step) = (self.shape.stride[0] * window.width, self.shape.stride[1]);
        for (i, planes) in x.chunks_exact_mut(self.shape.n_in * height * width).enumerate() {
            for (channel, plane) in planes.chunks_exact_mut(height * width).enumerate() {
                let mut values = std::mem::take(&mut window.values);
                values.fill(0.0);
                self.for_taps(tile, [i, channel], &window, |run, source| {
                    for (row, from) in columns[run].chunks_exact(self.out[1]).enumerate() {
                        add(from, step, &mut values[source + row * down..]);
                    }
                });
                window.values = values;
                window.for_rows(width, |padded, pixels| {
                    plane[pixels].iter_mut().zip(padded).for_each(|(x, value)| *x += *value);
                });
            }
        }
    }

    pub(super) fn n_pixels(&self, tile: &ImageTile) -> usize {
        tile.images.len() * tile.rows.len() * self.out[1]
    }

    fn window(&self, tile: &ImageTile) -> PaddedTile {
        let ([n_y, n_x], shape) = ([tile.rows.len(), self.out[1]], &self.shape);
        let extent =
            |i: usize, n: usize| (n - 1) * shape.stride[i] + (shape.kernel[i].max(1) - 1) * shape.dilation[i] + 1;
        let ([height, width], [[top, _], [left, _]]) = ([extent(0, n_y), extent(1, n_x)], shape.padding);
        let begin = tile.rows.start * shape.stride[0];
        let rows = top.saturating_sub(begin).min(height)..(self.size[0] + top).saturating_sub(begin).min(height);
        let cols = left.min(width)..(self.size[1] + left).min(width);
        PaddedTile { width, values: vec![0.0; height * width], rows, first_row: begin.saturating_sub(top), cols }
    }

    /// Calls `each` for every tap of the kernel, in channel `channel` of image `i` of the tile.
    ///
    /// The arguments are the range of the tap's values in the columns, and the position of the first value in
    /// the window. Each further row of outputs is read `stride` rows below.
    fn for_taps(
        &self,
        tile: &ImageTile,
        [i, channel]: [usize; 2],
        window: &PaddedTile,
        mut each: impl FnMut(Range<usize>, usize),
    ) {
        let (shape, n_pixels, n_run) = (&self.shape, self.n_pixels(tile), tile.rows.len() * self.out[1]);
        let [n_y, n_x] = shape.kernel;
        for (ky, kx) in (0..n_y).flat_map(|ky| (0..n_x).map(move |kx| (ky, kx))) {
            let first = ((channel * n_y + ky) * n_x + kx) * n_pixels + i * n_run;
            each(first..first + n_run, ky * shape.dilation[0] * window.width + kx * shape.dilation[1]);
        }
    }
}

impl PaddedTile {
    /// Calls `each` with every row inside the image, without padding, and its range of pixels in the plane.
    fn for_rows(&mut self, width: usize, mut each: impl FnMut(&mut [f32], Range<usize>)) {
        for (i, row) in self.rows.clone().enumerate() {
            let first = (self.first_row + i) * width;
            let padded = &mut self.values[row * self.width..][self.cols.clone()];
            each(padded, first..first + self.cols.len());
        }
    }
}

/// Returns the buffer resized to `n` elements with unspecified values.
pub(super) fn resized(buffer: &mut Vec<f32>, n: usize) -> &mut [f32] {
    buffer.resize(n, 0.0);
    buffer
}

/// Copies rows of `n` values: `to[row, i] = from[row * down + i * step]`.
fn copy_rows(from: &[f32], [down, step]: [usize; 2], to: &mut [f32], n: usize) {
    match n {
        4 if step == 1 => copy_rows_of::<4>(from, down, to),
        8 if step == 1 => copy_rows_of::<8>(from, down, to),
        16 if step == 1 => copy_rows_of::<16>(from, down, to),
        _ => to.chunks_exact_mut(n).enumerate().for_each(|(row, to)| copy(&from[row * down..], step, to)),
    }
}

/// Copies rows of a fixed, short length, for which a call of `memcpy` would take longer than the copy.
fn copy_rows_of<const N: usize>(from: &[f32], down: usize, to: &mut [f32]) {
    for (to, from) in to.as_chunks_mut::<N>().0.iter_mut().zip(from.chunks(down)) {
        if let Some(from) = from.first_chunk::<N>() {
            *to = *from;
        }
    }
}

/// Copies `to[i] = from[i * step]`.
fn copy(from: &[f32], step: usize, to: &mut [f32]) {
    if step != 1 {
        to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from);
        return;
    }
    let from = &from[..to.len()];
    match to.len() {
        4..8 => copy_ends::<4>(from, to),
        8..=16 => copy_ends::<8>(from, to),
        17..=32 => copy_ends::<16>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies `N` to `2 * N` values as two possibly overlapping arrays; a call of `memcpy` would take longer.
fn copy_ends<const N: usize>(from: &[f32], to: &mut [f32]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *from;
    }
}

/// Adds `to[i * step] += from[i]`.
fn add(from: &[f32], step: usize, to: &mut [f32]) {
    if step != 1 {
        to.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to += *from);
        return;
    }
    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
}
