//! The epilogue of a convolution: scale, shift, addition and ReLU in the pass that writes the outputs.

use crate::simd::{self, OutputBlock, SIDE};
use briquette_core::simd::SimdLevel;

/// Scale, shift, addition and ReLU of outputs: `y = v * scale[o] + shift[o]`, plus the options below.
///
/// This computes a bias, batch norm, shortcut and ReLU in the pass that writes the outputs. NaN stays NaN.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConvEpilogue<'a> {
    /// The factor of each output channel; 1 if absent.
    pub scale: Option<&'a [f32]>,
    /// The summand of each output channel; 0 if absent.
    pub shift: Option<&'a [f32]>,
    /// Whether to add outputs to the values in `y`.
    pub adds: bool,
    /// Whether to set negative outputs to 0.
    pub relu: bool,
}

impl ConvEpilogue<'_> {
    pub(crate) fn assert_channels(&self, n_out: usize) {
        for given in [self.scale, self.shift].into_iter().flatten() {
            assert_eq!(given.len(), n_out, "a scale or shift of {} for {n_out} outputs", given.len());
        }
    }

    /// Writes `values` `[pixel, n]`, the outputs of `n` channels from `first`, to `out` `[n, pixel]`.
    pub(crate) fn write(&self, level: SimdLevel, values: &[f32], first: usize, mut out: OutputBlock) {
        let n = out.n_rows();
        let (whole, rest) = (n / SIDE * SIDE, n % SIDE);
        for (i, pixels) in values.chunks(SIDE * n.max(1)).enumerate() {
            for channel in (0..whole).step_by(SIDE) {
                self.write_square(level, pixels, n, [first, channel, SIDE], i * SIDE, &mut out);
            }
            self.write_square(level, pixels, n, [first, whole, rest], i * SIDE, &mut out);
        }
    }

    /// Writes up to 16 pixels starting at `at`, for `n_channels` channels starting at `channel`.
    ///
    /// Channel 0 of `pixels` is channel `first` of the convolution.
    #[inline]
    fn write_square(
        &self,
        level: SimdLevel,
        pixels: &[f32],
        n: usize,
        [first, channel, n_channels]: [usize; 3],
        at: usize,
        out: &mut OutputBlock,
    ) {
        let (mut square, n_pixels) = ([[0.0_f32; SIDE]; SIDE], pixels.len() / n);
        if [n_pixels, n_channels] == [SIDE; 2] {
            simd::turn_square(level, &pixels[channel..], n, &mut square);
        } else {
            for (p, values) in pixels.chunks_exact(n).enumerate() {
                for (c, value) in values[channel..channel + n_channels].iter().enumerate() {
                    square[c][p] = *value;
                }
            }
        }
        for (c, values) in square[..n_channels].iter().enumerate() {
            let o = first + channel + c;
            let scale = self.scale.map_or(1.0, |scale| scale[o]);
            let shift = self.shift.map_or(0.0, |shift| shift[o]);
            for (y, v) in out.row(channel + c)[at..at + n_pixels].iter_mut().zip(values) {
                let value = v * scale + shift + if self.adds { *y } else { 0.0 };
                *y = if self.relu && value < 0.0 { 0.0 } else { value };
            }
        }
    }
}
