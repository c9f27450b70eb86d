//! The epilogue of a convolution: scale, shift, addition and ReLU or ReLU6 in the pass that writes the outputs.
#![allow(unsafe_code)]

use crate::float::on_path;
use crate::simd::{self, OutputBlock, SIDE};
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;
use std::ops::Range;

/// Scale, shift, addition and bounds of outputs: `y = v * scale[o] + shift[o]`, plus the options below.
///
/// This computes a bias, batch norm, shortcut and ReLU or ReLU6 in the pass that writes the outputs. NaN stays NaN.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConvEpilogue<'a> {
    /// The factor of each output channel; 1 if absent.
    pub scale: Option<&'a [f32]>,
    /// The summand of each output channel; 0 if absent.
    pub shift: Option<&'a [f32]>,
    /// Whether to add outputs to the values in `y`.
    pub adds: bool,
    /// The bounds of outputs.
    pub bounds: OutputBounds,
}

/// The bounds of outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputBounds {
    /// None.
    #[default]
    None,
    /// ReLU: negative outputs become 0.
    Relu,
    /// ReLU6: as ReLU, and outputs above 6 become 6.
    Relu6,
}

impl OutputBounds {
    /// Returns the least and the largest output.
    pub fn ends(self) -> [f32; 2] {
        match self {
            Self::None => [f32::NEG_INFINITY, f32::INFINITY],
            Self::Relu => [0.0, f32::INFINITY],
            Self::Relu6 => [0.0, 6.0],
        }
    }
}

/// Returns a value within bounds; NaN stays NaN.
#[inline(always)]
fn bounded(value: f32, [least, largest]: [f32; 2]) -> f32 {
    let value = if value < least { least } else { value };
    if value > largest { largest } else { value }
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
        let ends = self.bounds.ends();
        for (c, values) in square[..n_channels].iter().enumerate() {
            let o = first + channel + c;
            let scale = self.scale.map_or(1.0, |scale| scale[o]);
            let shift = self.shift.map_or(0.0, |shift| shift[o]);
            for (y, v) in out.row(channel + c)[at..at + n_pixels].iter_mut().zip(values) {
                *y = bounded(v * scale + shift + if self.adds { *y } else { 0.0 }, ends);
            }
        }
    }

    /// Writes `values` `[pixel, n]`, the outputs of some of `n_out` channels, to `out` `[pixel, n_out]`.
    pub(crate) fn write_rows(
        &self,
        level: SimdLevel,
        values: &[f32],
        channels: Range<usize>,
        (out, n_out): (&mut [f32], usize),
    ) {
        let of_channels = |given: Option<&[f32]>, other: f32| match given {
            Some(given) => given[channels.clone()].to_vec(),
            None => vec![other; channels.len()],
        };
        let (scale, shift) = (of_channels(self.scale, 1.0), of_channels(self.shift, 0.0));
        let (adds, ends) = (self.adds, self.bounds.ends());
        for (values, out) in values.chunks_exact(channels.len().max(1)).zip(out.chunks_exact_mut(n_out)) {
            write_row(level, values, [&scale, &shift], (adds, ends), &mut out[channels.clone()]);
        }
    }
}

/// Writes one pixel.
fn write_row(level: SimdLevel, values: &[f32], factors: [&[f32]; 2], how: (bool, [f32; 2]), out: &mut [f32]) {
    #[inline(always)]
    fn body(values: &[f32], factors: [&[f32]; 2], how: (bool, [f32; 2]), out: &mut [f32]) {
        let ([scale, shift], (adds, ends)) = (factors, how);
        let n = values.len().min(out.len()).min(scale.len()).min(shift.len());
        let (values, scale, shift, out) = (&values[..n], &scale[..n], &shift[..n], &mut out[..n]);
        // Two loops without calls: those are not compiled for the instructions of the level.
        if adds {
            for i in 0..n {
                out[i] = bounded(values[i] * scale[i] + shift[i] + out[i], ends);
            }
        } else {
            for i in 0..n {
                out[i] = bounded(values[i] * scale[i] + shift[i], ends);
            }
        }
    }
    on_path!(
        level,
        body(values: &[f32], factors: [&[f32]; 2], how: (bool, [f32; 2]), out: &mut [f32])
    );
}
