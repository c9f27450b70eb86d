//! Weights and numbers of a depthwise convolution in the order of its kernels.

use super::rounded_rows::CodeRounding;
use std::ops::Range;

/// Channels of a block: one byte each in a vector.
pub(crate) const CHANNELS: usize = 64;
/// Taps that one instruction multiplies.
pub(crate) const GROUP: usize = 4;
/// Outputs of a row that are computed together, so that the codes of their taps stay in the L1 cache: a multiple of four vectors of
/// four pixels.
pub(crate) const SEGMENT: usize = 32;
/// Vectors of outputs that share loads of weights.
pub(crate) const VECTORS: usize = 4;

/// Weights of a depthwise convolution in blocks of 64 channels. Each column of taps has groups of 4 taps.
///
/// A block has four vectors of 16 channels: vector `r` has the channels `16·lane + 4·r + i`, so that codes of four taps are interleaved,
/// and codes of outputs are packed, within lanes of 128 bits. A last block of up to 16 or 32 channels has them 4 times or twice, for as
/// many pixels.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has kernels for them"))]
#[derive(Debug, Clone)]
pub(crate) struct TapWeights {
    pub(super) n_channels: usize,
    /// Height and width.
    pub(super) kernel: [usize; 2],
    /// `[block][tap column][group][vector][channel][tap of the group]`; absent channels and taps are 0.
    pub(super) codes: Vec<i8>,
    /// `[block][vector][channel]`, like all numbers below.
    sums: Vec<i32>,
}

impl TapWeights {
    /// Arranges weights `[channel, ky, kx]`.
    pub(crate) fn new(codes: &[i8], kernel: [usize; 2]) -> Self {
        let ([height, width], n_groups) = (kernel, kernel[0].div_ceil(GROUP));
        let n_taps = height * width;
        let n_channels = codes.len() / n_taps.max(1);
        let code = |channel: usize, [ky, kx]: [usize; 2]| match channel < n_channels && ky < height {
            true => codes[channel * n_taps + ky * width + kx],
            false => 0,
        };
        let mut arranged_codes = Vec::with_capacity(n_channels.next_multiple_of(CHANNELS) * width * n_groups * GROUP);
        for block in 0..n_channels.div_ceil(CHANNELS) {
            let channels: Vec<usize> = places(block, n_channels).collect();
            for (kx, group) in (0..width).flat_map(|kx| (0..n_groups).map(move |group| (kx, group))) {
                let taps = |channel: usize| (0..GROUP).map(move |tap| code(channel, [group * GROUP + tap, kx]));
                arranged_codes.extend(channels.iter().flat_map(|channel| taps(*channel)));
            }
        }
        let sums: Vec<i32> =
            codes.chunks_exact(n_taps.max(1)).map(|taps| taps.iter().map(|code| i32::from(*code)).sum()).collect();
        Self { n_channels, kernel, codes: arranged_codes, sums: arranged(&sums) }
    }

    /// Returns the size in memory in bytes.
    pub(crate) const fn n_bytes(&self) -> usize {
        self.codes.len() + 4 * self.sums.len()
    }

    /// Returns the vectors of one column of taps in a block.
    pub(super) const fn per_column(&self) -> usize {
        self.kernel[0].div_ceil(GROUP) * 4
    }
}

/// The weights of a depthwise convolution, and the numbers that turn sums into codes.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has kernels for them"))]
pub(crate) struct TapBlocks<'a> {
    pub(super) weights: &'a TapWeights,
    /// Minus the zero point of the inputs times the sum of the weights.
    pub(super) zeros: Vec<i32>,
    pub(super) factors: Vec<f32>,
    pub(super) shifts: Vec<f32>,
    pub(super) bounds: [u8; 2],
}

impl<'a> TapBlocks<'a> {
    /// Arranges the numbers of `rounding`.
    ///
    /// # Panics
    /// If there is not a factor and a shift for each channel.
    pub(crate) fn new(weights: &'a TapWeights, rounding: &CodeRounding) -> Self {
        let lengths = [rounding.factors.len(), rounding.shifts.len()];
        assert_eq!(lengths, [weights.n_channels; 2], "numbers of each channel");
        Self {
            weights,
            zeros: weights.sums.iter().map(|sum| -rounding.zero * sum).collect(),
            factors: arranged(rounding.factors),
            shifts: arranged(rounding.shifts),
            bounds: rounding.bounds.map(|bound| bound as u8),
        }
    }
}

/// Codes of four taps of 16 channels.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TapLine(pub(super) [u8; 64]);

/// The inputs of a row of outputs.
pub(crate) struct TapRow<'a> {
    /// The input row of each row of taps, `[column, channel]`.
    pub(crate) rows: &'a [&'a [u8]],
    /// The codes of a column outside of the image.
    pub(crate) padding: &'a [u8],
    /// The input column of the first tap of the first output.
    pub(crate) first: isize,
    /// The distance between the first taps of outputs, and between taps.
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
}

impl TapRow<'_> {
    /// Returns memory for the codes of the taps of up to [`SEGMENT`] outputs.
    pub(crate) fn lines(&self, blocks: &TapBlocks) -> Vec<TapLine> {
        let weights = blocks.weights;
        let n_columns = SEGMENT * self.stride + weights.kernel[1] * self.dilation;
        vec![TapLine([0; 64]); n_columns * weights.per_column()]
    }
}

/// Up to 64 channels of a row of outputs.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has kernels for them"))]
pub(super) struct TapBlock<'a> {
    pub(super) row: &'a TapRow<'a>,
    pub(super) blocks: &'a TapBlocks<'a>,
    pub(super) index: usize,
    /// The first channel, and how many there are.
    pub(super) first: usize,
    pub(super) n: usize,
    /// Channels of the image.
    pub(super) n_channels: usize,
    /// Columns of the image.
    width: isize,
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has kernels for them"))]
impl<'a> TapBlock<'a> {
    /// Returns all blocks of a row.
    pub(super) fn each(row: &'a TapRow<'a>, blocks: &'a TapBlocks<'a>) -> impl Iterator<Item = Self> {
        let n_channels = blocks.weights.n_channels;
        let width = row.rows.first().map_or(0, |row| row.len() / n_channels) as isize;
        (0..n_channels).step_by(CHANNELS).enumerate().map(move |(index, first)| {
            let n = (n_channels - first).min(CHANNELS);
            Self { row, blocks, index, first, n, n_channels, width }
        })
    }

    /// Returns the columns whose taps vectors of `n_pixels` outputs need, counted from that of the first output.
    pub(super) fn columns(&self, n_pixels: usize, n_vectors: usize) -> impl Iterator<Item = Range<usize>> {
        let (row, width) = (self.row, self.blocks.weights.kernel[1]);
        let step = n_pixels * row.stride;
        // Columns between the taps of neighbouring vectors may not be used.
        let (n, length) = match row.dilation == 1 && step > width {
            true => (n_vectors, width),
            false => (1, (n_vectors - 1) * step + (width - 1) * row.dilation + 1),
        };
        (0..n).map(move |vector| vector * step..vector * step + length)
    }

    /// Returns the offset of each pixel of a vector in a row, for the columns that start at `first`; `None` for padding.
    #[inline(always)]
    pub(super) fn pixels<const P: usize>(&self, first: isize) -> [Option<usize>; P] {
        std::array::from_fn(|index| {
            let column = first + (index * self.row.stride) as isize;
            (0..self.width).contains(&column).then(|| column as usize * self.n_channels)
        })
    }

    /// Returns the lines of the taps of four vectors of `n_pixels` outputs, and the distance between vectors.
    ///
    /// # Panics
    /// If lines are missing.
    #[inline(always)]
    pub(super) fn lines_of<'l>(&self, n_pixels: usize, first: usize, lines: &'l [TapLine]) -> (&'l [TapLine], usize) {
        let (row, weights) = (self.row, self.blocks.weights);
        let per_column = weights.per_column();
        let between = n_pixels * row.stride * per_column;
        let lines = &lines[first * between..];
        // As many lines after the first as the last tap of the last vector.
        let n_lines = (VECTORS - 1) * between + ((weights.kernel[1] - 1) * row.dilation + 1) * per_column;
        assert!(lines.len() >= n_lines, "{} lines of {n_lines}", lines.len());
        (lines, between)
    }

    /// Returns the weights of the block.
    #[inline(always)]
    pub(super) fn codes(&self) -> &[i8] {
        let n = self.blocks.weights.kernel[1] * self.blocks.weights.per_column() * CHANNELS;
        &self.blocks.weights.codes[self.index * n..][..n]
    }
}

/// Returns how many channels a block has room for: 16, 32 or 64.
pub(super) const fn block_width(n_left: usize) -> usize {
    match n_left {
        0..=16 => 16,
        17..=32 => 32,
        _ => CHANNELS,
    }
}

/// Returns the channels of a block in their order `[vector][lane][4]`; absent channels are out of range.
fn places(block: usize, n_channels: usize) -> impl Iterator<Item = usize> {
    let first = block * CHANNELS;
    let width = block_width(n_channels - first);
    (0..CHANNELS).map(move |at| {
        let (vector, lane, i) = (at / 16, at % 16 / 4, at % 4);
        let within = lane * 16 % width + 4 * vector + i;
        first + within
    })
}

fn arranged<T: Copy + Default>(numbers: &[T]) -> Vec<T> {
    let n = numbers.len();
    let places = (0..n.div_ceil(CHANNELS)).flat_map(|block| places(block, n));
    places.map(|channel| numbers.get(channel).copied().unwrap_or_default()).collect()
}
