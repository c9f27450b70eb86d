//! Convolutions with int8 weights on a device.

use crate::conv2d_steps::Conv2dSteps;
use crate::fastest::multiply;
use crate::gpu::Gpu;
use crate::int8::Int8;
use crate::launch::{self, DeviceEpilogue, Floats, OutputPlacement, Product};
use crate::pack;

/// The largest size of gathered patches, in bytes.
const PIECE: usize = 64 << 20;

/// Convolution weights `[out, in / groups, ky, kx]` with a scale for each output.
#[derive(Debug, Clone)]
pub struct DeviceConv2d {
    dims: [usize; 4],
    weights: Int8,
}

impl DeviceConv2d {
    /// Copies row-major `codes` with the values `codes[o, ..] * scales[o]` to the device.
    ///
    /// # Panics
    /// If the lengths do not match the extents.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], dims: [usize; 4], is_sparse: bool) -> Self {
        let [n_out, n_in, height, width] = dims;
        Self { dims, weights: Int8::new(gpu, codes, scales, [n_out, n_in * height * width], is_sparse) }
    }

    /// Returns the extents of the weights.
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// Returns the weights as rows of outputs.
    pub const fn rows(&self) -> &Int8 {
        &self.weights
    }

    /// Returns whether zeros are omitted.
    pub const fn is_sparse(&self) -> bool {
        self.weights.is_sparse()
    }

    /// Returns the size on the device in bytes.
    pub fn n_bytes(&self) -> usize {
        self.weights.n_bytes()
    }

    /// Convolves images, one per row of `x`, to `y` `[image, out, height, width]`; each image is quantized
    /// separately. See [`Self::forward_pixels`] for kernels of one tap.
    ///
    /// # Panics
    /// If sizes disagree, or the groups do not divide the outputs.
    pub fn forward(&self, x: &Floats, steps: &Conv2dSteps, symmetric: bool, epilogue: &DeviceEpilogue, y: &Floats) {
        let [out_height, out_width] = steps.out_size();
        let (n_pixels, [n_out, n_in, ..]) = (out_height * out_width, self.dims);
        let groups = steps.channels.checked_div(n_in).unwrap_or(1).max(1);
        assert!(n_out.is_multiple_of(groups), "{groups} groups of {n_out} outputs");
        assert_eq!(x.n_cols, steps.channels * steps.size[0] * steps.size[1], "values of an image");
        assert_eq!((y.n_rows, y.n_cols), (x.n_rows, n_out * n_pixels), "images of outputs");
        if y.n_rows * y.n_cols == 0 {
            return;
        }
        let (gpu, weights) = (self.weights.gpu(), &self.weights);
        let (images, rows) = launch::quantize(gpu, x, pack::row_words(x.n_cols), symmetric);
        let place = OutputPlacement::images(n_out, n_pixels, n_pixels);
        if groups > 1 && groups == n_out && n_in == 1 {
            let product = Product { codes: &images, rows: &rows, weights, place, epilogue };
            return launch::depthwise(gpu, &product, &launch::dense_words(weights), steps, y);
        }
        let (row_words, n) = (weights.row_words(), n_out / groups);
        let piece = (PIECE / 4 / row_words.max(1)).max(128) / 128 * 128;
        for group in 0..groups {
            for first_row in (0..x.n_rows * n_pixels).step_by(piece) {
                let n_rows = piece.min(x.n_rows * n_pixels - first_row);
                let from = [first_row, n_rows, group * n_in];
                let patches = launch::patches(gpu, &images, &rows.zeros, from, [weights.n_in(), row_words], steps);
                let place = OutputPlacement { first_row, first_col: group * n, end_col: (group + 1) * n, ..place };
                multiply(&Product { codes: &patches, rows: &rows, weights, place, epilogue }, y);
            }
        }
    }

    /// Convolves with a kernel of one tap: each row of `x` is the pixel of an output and is quantized separately. Writes
    /// `y` `[image, out, height, width]`.
    ///
    /// # Panics
    /// If sizes disagree.
    pub fn forward_pixels(&self, x: &Floats, symmetric: bool, epilogue: &DeviceEpilogue, y: &Floats) {
        let [n_out, n_in, height, width] = self.dims;
        assert_eq!([x.n_cols, height, width], [n_in, 1, 1], "channels of a pixel, and taps");
        assert_eq!(y.n_rows * y.n_cols, x.n_rows * n_out, "outputs of {} pixels", x.n_rows);
        if y.n_rows * y.n_cols == 0 {
            return;
        }
        let (gpu, weights, n_pixels) = (self.weights.gpu(), &self.weights, y.n_cols / n_out);
        let (codes, rows) = launch::quantize(gpu, x, weights.row_words(), symmetric);
        let place = OutputPlacement::images(n_out, n_pixels, 1);
        multiply(&Product { codes: &codes, rows: &rows, weights, place, epilogue }, y);
    }
}
