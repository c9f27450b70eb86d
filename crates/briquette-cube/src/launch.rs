//! Every launch of a kernel. Kernels check no bounds but their own, so sizes and buffers are matched here.

#![expect(unsafe_code, reason = "kernels are launched without checks of each access")]

use crate::conv::StepsLaunch;
use crate::conv2d::Conv2dSteps;
use crate::finish::{Finish, TargetLaunch};
use crate::gpu::{Buffer, Gpu, cubes, groups, u32_of};
use crate::mma::Tile;
use crate::weights::{Blocks, Int8, Kept};
use crate::{bitmask, conv, decode, dp4a, few_rows, mma, quantize_rows};
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::{BufferArg, CubeDim};

/// A buffer as an argument of elements of `size` bytes.
fn arg(buffer: &Buffer, size: usize) -> BufferArg {
    // SAFETY: the length is that of the buffer.
    unsafe { BufferArg::from_raw_parts(buffer.handle().clone(), buffer.n_bytes() / size) }
}

/// Rows of floats.
#[derive(Debug, Clone)]
pub struct Floats {
    /// Where they are.
    pub buffer: Buffer,
    /// f32, f16 or bf16.
    pub dtype: ElemType,
    /// Rows.
    pub n_rows: usize,
    /// Columns.
    pub n_cols: usize,
}

impl Floats {
    /// Room for rows.
    pub fn empty(gpu: &Gpu, dtype: ElemType, n_rows: usize, n_cols: usize) -> Self {
        let n_bytes = n_rows * n_cols * dtype.size();
        Self { buffer: gpu.empty::<u8>(n_bytes), dtype, n_rows, n_cols }
    }

    fn arg(&self, lanes: usize) -> BufferArg {
        assert_eq!(self.buffer.n_bytes(), self.n_rows * self.n_cols * self.dtype.size(), "the size of floats");
        u32_of(self.n_rows * self.n_cols);
        arg(&self.buffer, lanes * self.dtype.size())
    }
}

/// Rows of codes, in whole words.
#[derive(Debug, Clone)]
pub(crate) struct Codes {
    /// Where they are.
    pub words: Buffer,
    /// Rows.
    pub n_rows: usize,
    /// Words of a row.
    pub row_words: usize,
}

impl Codes {
    fn empty(gpu: &Gpu, n_rows: usize, row_words: usize) -> Self {
        Self { words: gpu.empty::<u32>(n_rows * row_words), n_rows, row_words }
    }

    fn arg(&self, lanes: usize) -> BufferArg {
        assert_eq!(self.words.n_bytes(), self.n_rows * self.row_words * 4, "the size of codes");
        u32_of(self.n_rows * self.row_words);
        arg(&self.words, lanes * 4)
    }
}

/// The scale and the zero point of each row, or of each image.
#[derive(Debug, Clone)]
pub(crate) struct RowScales {
    /// f32.
    pub scales: Buffer,
    /// i32.
    pub zeros: Buffer,
}

/// What follows a product: see [`Finish`].
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// A factor for each output, f32.
    pub scale: Option<Buffer>,
    /// A term for each output, f32.
    pub shift: Option<Buffer>,
    /// Whether outputs are added to what there is.
    pub adds: bool,
    /// Whether negatives become 0.
    pub relu: bool,
}

impl Ending {
    const fn finish(&self) -> Finish {
        Finish { scale: self.scale.is_some(), shift: self.shift.is_some(), adds: self.adds, relu: self.relu }
    }

    /// The factors and the terms of at least `n_out` outputs; `other` stands for what there is none of.
    fn args(&self, n_out: usize, other: &Buffer) -> [BufferArg; 2] {
        [&self.scale, &self.shift].map(|given| {
            assert!(given.as_ref().is_none_or(|given| given.n_bytes() >= 4 * n_out), "one for each of {n_out} outputs");
            arg(given.as_ref().unwrap_or(other), 4)
        })
    }
}

/// Where the outputs of a product go; see [`crate::finish::Target`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Rows that share a scale.
    pub image_rows: usize,
    /// Outputs from one image to the next.
    pub image_stride: usize,
    /// Outputs from one row to the next.
    pub row_stride: usize,
    /// Outputs from one column to the next.
    pub col_stride: usize,
    /// The row of the first one.
    pub first_row: usize,
    /// The first column that is made.
    pub first_col: usize,
    /// And the one behind the last.
    pub end_col: usize,
}

impl Place {
    /// Rows one behind the other, each with its own scale.
    pub(crate) const fn rows(n_cols: usize) -> Self {
        Self {
            image_rows: 1,
            image_stride: n_cols,
            row_stride: 0,
            col_stride: 1,
            first_row: 0,
            first_col: 0,
            end_col: n_cols,
        }
    }

    fn launch(self) -> TargetLaunch {
        let Self { image_rows, image_stride, row_stride, col_stride, first_row, first_col, end_col: _ } = self;
        let [a, b, c, d, e, f] = [image_rows, image_stride, row_stride, col_stride, first_row, first_col].map(u32_of);
        TargetLaunch::new(a, b, c, d, e, f)
    }
}

/// Above this, parts of a row are looked at side by side.
const WIDE: usize = 1 << 16;
/// Values in a part of a wide row.
const PART: usize = 1 << 14;

/// Quantizes each row by itself, to rows of `row_words` words.
pub(crate) fn quantize(gpu: &Gpu, x: &Floats, row_words: usize, symmetric: bool) -> (Codes, RowScales) {
    let codes = Codes::empty(gpu, x.n_rows, row_words);
    let rows = RowScales { scales: gpu.empty::<f32>(x.n_rows), zeros: gpu.empty::<i32>(x.n_rows) };
    if x.n_rows == 0 {
        return (codes, rows);
    }
    let (client, dim) = (gpu.client(), CubeDim::new_1d(quantize_rows::UNITS as u32));
    let [n_cols, words] = [x.n_cols, row_words].map(u32_of);
    if x.n_cols <= WIDE {
        // SAFETY: a cube for each row; `codes`, `scales` and `zeros` have that many.
        unsafe {
            quantize_rows::quantize_rows::launch_unchecked(
                client,
                cubes(x.n_rows, 1),
                dim,
                x.arg(1),
                codes.arg(1),
                arg(&rows.scales, 4),
                arg(&rows.zeros, 4),
                n_cols,
                words,
                symmetric,
                x.dtype,
            );
        }
        return (codes, rows);
    }
    let n_parts = x.n_cols.div_ceil(PART);
    let [least, most] = [(); 2].map(|()| gpu.empty::<f32>(x.n_rows * n_parts));
    let magnitude = gpu.empty::<u32>(x.n_rows * n_parts);
    let inverses = gpu.empty::<f32>(x.n_rows);
    let n_words = x.n_rows * row_words;
    // SAFETY: a span for each part of each row, then one scale for each row, then each word of codes.
    unsafe {
        quantize_rows::spans::launch_unchecked(
            client,
            cubes(n_parts, x.n_rows),
            dim,
            x.arg(1),
            arg(&least, 4),
            arg(&most, 4),
            arg(&magnitude, 4),
            n_cols,
            PART as u32,
            x.dtype,
        );
        quantize_rows::row_scales::launch_unchecked(
            client,
            cubes(groups(x.n_rows, quantize_rows::UNITS), 1),
            dim,
            arg(&least, 4),
            arg(&most, 4),
            arg(&magnitude, 4),
            arg(&rows.scales, 4),
            arg(&inverses, 4),
            arg(&rows.zeros, 4),
            u32_of(x.n_rows),
            u32_of(n_parts),
            symmetric,
        );
        quantize_rows::encode::launch_unchecked(
            client,
            cubes(groups(n_words, quantize_rows::UNITS), 1),
            dim,
            x.arg(1),
            arg(&rows.scales, 4),
            arg(&inverses, 4),
            arg(&rows.zeros, 4),
            codes.arg(1),
            n_cols,
            words,
            u32_of(n_words),
            x.dtype,
        );
    }
    (codes, rows)
}

/// What a product is made of.
pub(crate) struct Product<'a> {
    pub(crate) codes: &'a Codes,
    pub(crate) rows: &'a RowScales,
    pub(crate) weights: &'a Int8,
    pub(crate) place: Place,
    pub(crate) ending: &'a Ending,
}

impl Product<'_> {
    const fn n_cols(&self) -> usize {
        self.place.end_col - self.place.first_col
    }

    fn args(&self) -> [BufferArg; 6] {
        let [scale, shift] = self.ending.args(self.weights.n_out(), &self.weights.scales);
        let (rows, weights) = (self.rows, self.weights);
        assert_eq!(self.codes.row_words, weights.row_words(), "words of a row");
        assert!(self.place.end_col <= weights.n_out(), "columns of {} outputs", weights.n_out());
        [arg(&rows.scales, 4), arg(&rows.zeros, 4), arg(&weights.sums, 4), arg(&weights.scales, 4), scale, shift]
    }
}

/// A product by matrix instructions, of weights as they are kept, or of `words`, with their zeros.
pub(crate) fn product_mma(gpu: &Gpu, product: &Product, words: Option<&Buffer>, tile: Tile, y: &Floats) {
    let (codes, weights) = (product.codes, product.weights);
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let [tile_rows, tile_cols] = tile.extents();
    let nothing = || arg(&weights.scales, 4);
    let (dense, is_sparse, [bits, values, bases]) = match (&weights.kept, words) {
        (Kept::Dense(words), _) | (_, Some(words)) => (arg(words, 16), false, [(); 3].map(|()| nothing())),
        (Kept::Blocks(Blocks { bits, values, bases }), None) => {
            (codes.arg(4), true, [arg(bits, 4), arg(values, 4), arg(bases, 4)])
        }
    };
    // SAFETY: rows and columns behind the last are read as the last and not written; codes and weights have rows of the same
    // length.
    unsafe {
        mma::product_mma::launch_unchecked(
            gpu.client(),
            cubes(groups(product.n_cols(), tile_cols), groups(codes.n_rows, tile_rows)),
            CubeDim::new_2d(32, tile.n_warps() as u32),
            codes.arg(4),
            dense,
            bits,
            values,
            bases,
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words / 4),
            product.place.launch(),
            tile,
            is_sparse,
            product.ending.finish(),
            y.dtype,
        );
    }
}

/// A product by dot products of four, of weights with their zeros.
pub(crate) fn product_dp4a(gpu: &Gpu, product: &Product, words: &Buffer, y: &Floats) {
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let n = codes.n_rows * product.n_cols();
    // SAFETY: a unit for each output; codes and weights have rows of the same length.
    unsafe {
        dp4a::product_dp4a::launch_unchecked(
            gpu.client(),
            cubes(groups(n, dp4a::UNITS), 1),
            CubeDim::new_1d(dp4a::UNITS as u32),
            codes.arg(1),
            arg(words, 4),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words),
            product.place.launch(),
            product.ending.finish(),
            y.dtype,
        );
    }
}

/// How many rows kernels of few rows take at once.
fn rows_at_once(n_rows: usize) -> usize {
    n_rows.next_power_of_two().min(8)
}

/// Cubes of kernels of few rows.
fn few_rows_cubes(n_rows: usize, n_out: usize, rows: usize) -> cubecl_core::prelude::CubeCount {
    cubes(groups(n_out, few_rows::WARPS * few_rows::OUTPUTS), groups(n_rows, rows))
}

/// A product of a few rows of codes, of weights with their zeros.
pub(crate) fn few_rows_codes(gpu: &Gpu, product: &Product, words: &Buffer, y: &Floats) {
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let rows = rows_at_once(codes.n_rows);
    // SAFETY: rows and columns behind the last are read as the last and not written.
    unsafe {
        few_rows::few_rows_codes::launch_unchecked(
            gpu.client(),
            few_rows_cubes(codes.n_rows, product.n_cols(), rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            codes.arg(1),
            arg(words, 4),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words),
            product.place.launch(),
            rows,
            product.ending.finish(),
            y.dtype,
        );
    }
}

/// A few rows of floats times int8 weights with their zeros; inputs are a multiple of four.
pub(crate) fn few_rows_int8(gpu: &Gpu, x: &Floats, weights: &Int8, words: &Buffer, shift: Option<&Buffer>, y: &Floats) {
    assert!(x.n_cols == weights.n_in() && x.n_cols.is_multiple_of(4), "{} inputs", x.n_cols);
    let rows = rows_at_once(x.n_rows);
    // SAFETY: rows and columns behind the last are read as the last and not written.
    unsafe {
        few_rows::few_rows_int8::launch_unchecked(
            gpu.client(),
            few_rows_cubes(x.n_rows, weights.n_out(), rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            x.arg(4),
            arg(words, 4),
            arg(&weights.scales, 4),
            arg(shift.unwrap_or(&weights.scales), 4),
            y.arg(1),
            u32_of(x.n_rows),
            u32_of(weights.n_out()),
            u32_of(x.n_cols / 4),
            u32_of(weights.row_words()),
            rows,
            shift.is_some(),
            y.dtype,
        );
    }
}

/// A few rows of floats times int4 weights; inputs and groups are multiples of eight.
pub(crate) fn few_rows_int4(
    gpu: &Gpu,
    x: &Floats,
    [words, scales]: [&Buffer; 2],
    group: usize,
    shift: Option<&Buffer>,
    y: &Floats,
) {
    assert!(x.n_cols.is_multiple_of(8) && group.is_multiple_of(8), "{} inputs by {group}", x.n_cols);
    let rows = rows_at_once(x.n_rows);
    // SAFETY: rows and columns behind the last are read as the last and not written.
    unsafe {
        few_rows::few_rows_int4::launch_unchecked(
            gpu.client(),
            few_rows_cubes(x.n_rows, y.n_cols, rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            x.arg(4),
            arg(words, 4),
            arg(scales, 4),
            arg(shift.unwrap_or(scales), 4),
            y.arg(1),
            u32_of(x.n_rows),
            u32_of(y.n_cols),
            u32_of(x.n_cols / 8),
            u32_of(group / 8),
            rows,
            shift.is_some(),
            y.dtype,
        );
    }
}

/// Weights with their zeros, in memory that is soon free again.
pub(crate) fn expand(gpu: &Gpu, blocks: &Blocks, n_out: usize, n_in: usize) -> Buffer {
    let row_words = crate::pack::row_words(n_in);
    let codes = Codes::empty(gpu, n_out, row_words);
    let row_blocks = n_in.div_ceil(bitmask::BLOCK_INPUTS);
    let n_blocks = n_out.div_ceil(bitmask::BLOCK_ROWS) * row_blocks;
    // SAFETY: a warp for each block, whose rows and words are written as far as they are there.
    unsafe {
        bitmask::expand::launch_unchecked(
            gpu.client(),
            cubes(groups(n_blocks, bitmask::BLOCKS), 1),
            CubeDim::new_2d(32, bitmask::BLOCKS as u32),
            arg(&blocks.bits, 4),
            arg(&blocks.values, 4),
            arg(&blocks.bases, 4),
            codes.arg(1),
            u32_of(n_out),
            u32_of(row_words),
            u32_of(row_blocks),
            u32_of(n_blocks),
        );
    }
    codes.words
}

/// Weights `[n_out, n_in]` as floats, from codes of `bits` bits with a scale for each `group` of a row.
pub(crate) fn decode(gpu: &Gpu, words: &Buffer, scales: &Buffer, group: usize, bits: usize, out: &Floats) {
    let n = out.n_rows * out.n_cols;
    let row_words = if bits == 8 { crate::pack::row_words(out.n_cols) } else { out.n_cols.div_ceil(8) };
    // SAFETY: a unit for each weight.
    unsafe {
        decode::decode::launch_unchecked(
            gpu.client(),
            cubes(groups(n, decode::UNITS), 1),
            CubeDim::new_1d(decode::UNITS as u32),
            arg(words, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(out.n_rows),
            u32_of(out.n_cols),
            u32_of(row_words),
            u32_of(group),
            bits,
            out.dtype,
        );
    }
}

/// Integers that are ids.
#[derive(Debug, Clone)]
pub struct Ids {
    /// Where they are.
    pub buffer: Buffer,
    /// Of what type.
    pub dtype: ElemType,
}

impl Ids {
    /// How many there are.
    pub fn n(&self) -> usize {
        self.buffer.n_bytes() / self.dtype.size()
    }
}

/// Rows of a table whose rows are whole words.
pub(crate) fn lookup(gpu: &Gpu, ids: &Ids, words: &Buffer, scales: &Buffer, n_rows: usize, out: &Floats) {
    // SAFETY: a cube for each id, which reads a row that is there.
    unsafe {
        decode::lookup::launch_unchecked(
            gpu.client(),
            cubes(ids.n(), 1),
            CubeDim::new_1d(decode::UNITS as u32),
            arg(&ids.buffer, ids.dtype.size()),
            arg(words, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(n_rows),
            u32_of(out.n_cols),
            u32_of(crate::pack::row_words(out.n_cols)),
            [ids.dtype, out.dtype],
        );
    }
}

/// Rows of a table without its zeros.
pub(crate) fn lookup_bitmask(gpu: &Gpu, ids: &Ids, rows: &Blocks, scales: &Buffer, n_rows: usize, out: &Floats) {
    // SAFETY: a warp for each id, which reads a row that is there.
    unsafe {
        decode::lookup_bitmask::launch_unchecked(
            gpu.client(),
            cubes(ids.n(), 1),
            CubeDim::new_1d(32),
            arg(&ids.buffer, ids.dtype.size()),
            arg(&rows.bits, 4),
            arg(&rows.values, 4),
            arg(&rows.bases, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(n_rows),
            u32_of(out.n_cols),
            u32_of(out.n_cols.div_ceil(32)),
            [ids.dtype, out.dtype],
        );
    }
}

impl Conv2dSteps {
    fn launch(&self) -> StepsLaunch {
        let (s, [out_height, out_width]) = (self, self.out_size());
        let image_words = crate::pack::row_words(s.channels * s.size[0] * s.size[1]);
        let sizes = [s.channels, s.size[0], s.size[1], image_words, out_height, out_width, s.kernel[0], s.kernel[1]];
        let [a, b, c, d, e, f, g, h] = sizes.map(u32_of);
        let steps = [s.stride[0], s.stride[1], s.padding[0][0], s.padding[1][0], s.dilation[0], s.dilation[1]];
        let [i, j, k, l, m, n] = steps.map(u32_of);
        StepsLaunch::new(a, b, c, d, e, f, g, h, i, j, k, l, m, n)
    }
}

/// Patches of images as rows of `row_words` words: `n_rows` of them from pixel `first` on, in channels from `channel` on.
pub(crate) fn patches(
    gpu: &Gpu,
    images: &Codes,
    zeros: &Buffer,
    [first, n_rows, channel]: [usize; 3],
    [depth, row_words]: [usize; 2],
    steps: &Conv2dSteps,
) -> Codes {
    let rows = Codes::empty(gpu, n_rows, row_words);
    // SAFETY: a unit for each word; taps outside of an image are not read.
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

/// A convolution of each channel by itself.
pub(crate) fn depthwise(gpu: &Gpu, product: &Product, words: &Buffer, steps: &Conv2dSteps, y: &Floats) {
    let (rows, weights) = (product.rows, product.weights);
    let [scale, shift] = product.ending.args(weights.n_out(), &weights.scales);
    let n = y.n_rows * y.n_cols;
    // SAFETY: a unit for each output; taps outside of an image are not read.
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
            product.ending.finish(),
            y.dtype,
        );
    }
}
