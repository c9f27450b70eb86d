//! Convolutions of int8 weights on a device.

use crate::gpu::Gpu;
use crate::launch::{self, Ending, Floats, Place, Product};
use crate::pack;
use crate::weights::Int8;
use cubecl_core::ir::ElemType;

/// Patches are made in pieces of at most so many bytes.
const PIECE: usize = 64 << 20;

/// How a kernel steps over images of one size; pairs are of height and width.
#[derive(Debug, Clone, Copy)]
pub struct Conv2dSteps {
    /// Channels of an image.
    pub channels: usize,
    /// Extent of an image.
    pub size: [usize; 2],
    /// Extent of the kernel.
    pub kernel: [usize; 2],
    /// Steps between patches.
    pub stride: [usize; 2],
    /// Zeros before and after.
    pub padding: [[usize; 2]; 2],
    /// Steps between taps.
    pub dilation: [usize; 2],
}

impl Conv2dSteps {
    /// Extent of the output, 0 where the kernel does not fit.
    pub fn out_size(&self) -> [usize; 2] {
        std::array::from_fn(|i| {
            let extent = self.dilation[i] * (self.kernel[i].max(1) - 1) + 1;
            let padded = self.size[i] + self.padding[i].iter().sum::<usize>();
            padded.checked_sub(extent).map_or(0, |room| room / self.stride[i] + 1)
        })
    }
}

/// Weights `[out, in / groups, ky, kx]` with a scale for each output.
#[derive(Debug, Clone)]
pub struct Conv2d {
    gpu: Gpu,
    dims: [usize; 4],
    /// Those of each group; a depthwise convolution is one.
    groups: Vec<Int8>,
    is_depthwise: bool,
}

impl Conv2d {
    /// Copies row-major `codes`, worth `codes[o, ..] * scales[o]` each, to the device.
    ///
    /// # Panics
    /// If the lengths disagree with the extents, or the groups do not divide the outputs.
    pub fn new(gpu: &Gpu, codes: &[i8], scales: &[f32], dims: [usize; 4], groups: usize, is_sparse: bool) -> Self {
        let [n_out, n_in, height, width] = dims;
        let depth = n_in * height * width;
        assert!(groups > 0 && n_out.is_multiple_of(groups), "{groups} groups of {n_out} outputs");
        assert_eq!((codes.len(), scales.len()), (n_out * depth, n_out), "codes and scales of {dims:?}");
        let is_depthwise = groups > 1 && groups == n_out && n_in == 1;
        let n = if is_depthwise { n_out } else { n_out / groups };
        let group = |i: usize| {
            let rows = i * n..(i + 1) * n;
            Int8::new(gpu, &codes[rows.start * depth..rows.end * depth], &scales[rows], [n, depth], is_sparse)
        };
        let groups = (0..n_out.checked_div(n).unwrap_or(0)).map(group).collect();
        Self { gpu: gpu.clone(), dims, groups, is_depthwise }
    }

    /// Extents of the weights.
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// Whether zeros are left out.
    pub fn is_sparse(&self) -> bool {
        self.groups.first().is_some_and(Int8::is_sparse)
    }

    /// Bytes held on the device.
    pub fn n_bytes(&self) -> usize {
        self.groups.iter().map(Int8::n_bytes).sum()
    }

    /// The weights of each group as floats.
    pub fn decode(&self, dtype: ElemType) -> Vec<Floats> {
        self.groups.iter().map(|group| group.decode(dtype)).collect()
    }

    /// Convolves images, a row of `x` each, to `y` `[image, out, height, width]`; each image is quantized by itself.
    ///
    /// # Panics
    /// If sizes disagree.
    pub fn forward(&self, x: &Floats, steps: &Conv2dSteps, symmetric: bool, ending: &Ending, y: &Floats) {
        let [out_height, out_width] = steps.out_size();
        let (n_pixels, n_out) = (out_height * out_width, self.dims[0]);
        assert_eq!(x.n_cols, steps.channels * steps.size[0] * steps.size[1], "values of an image");
        assert_eq!((y.n_rows, y.n_cols), (x.n_rows, n_out * n_pixels), "images of outputs");
        if y.n_rows * y.n_cols == 0 {
            return;
        }
        let (images, rows) = launch::quantize(&self.gpu, x, pack::row_words(x.n_cols), symmetric);
        let place = Place {
            image_rows: n_pixels,
            image_stride: n_out * n_pixels,
            row_stride: 1,
            col_stride: n_pixels,
            first_row: 0,
            first_col: 0,
        };
        if self.is_depthwise {
            let weights = &self.groups[0];
            let product = Product { codes: &images, rows: &rows, weights, place, ending };
            return launch::depthwise(&self.gpu, &product, &weights.words(), steps, y);
        }
        for (i, weights) in self.groups.iter().enumerate() {
            let row_words = weights.row_words();
            let piece = (PIECE / 4 / row_words.max(1)).max(128) / 128 * 128;
            for first_row in (0..x.n_rows * n_pixels).step_by(piece) {
                let n_rows = piece.min(x.n_rows * n_pixels - first_row);
                let from = [first_row, n_rows, i * self.dims[1]];
                let patches = launch::patches(&self.gpu, &images, &rows.zeros, from, [weights.n_in(), row_words], steps);
                let place = Place { first_row, first_col: i * weights.n_out(), ..place };
                weights.multiply(weights.way(n_rows), &patches, &rows, place, ending, y);
            }
        }
    }
}
