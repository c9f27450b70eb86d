//! Weights and numbers of a depthwise convolution in the order of its AVX-512 kernel.

use super::rounded_rows::CodeRounding;

/// Channels of a block: one byte each in a vector.
pub(crate) const CHANNELS: usize = 64;
/// Taps that one instruction multiplies.
pub(crate) const GROUP: usize = 4;

/// Weights of a depthwise convolution in blocks of 64 channels and groups of 4 taps, and what turns sums into codes.
///
/// A block has four vectors of 16 channels: vector `r` has the channels `16·lane + 4·r + i`, so that codes of four taps are interleaved,
/// and codes of outputs are packed, within lanes of 128 bits.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AVX-512 has a kernel for them"))]
pub(crate) struct TapBlocks {
    pub(super) n_channels: usize,
    pub(super) n_taps: usize,
    /// `[block][group][vector][channel][tap]`; absent channels and taps are 0.
    pub(super) weights: Vec<i8>,
    /// `[block][vector][channel]`, as are the next three: the zero point of the inputs times the sum of the weights.
    pub(super) zeros: Vec<i32>,
    pub(super) scales: Vec<f32>,
    pub(super) factors: Vec<f32>,
    pub(super) shifts: Vec<f32>,
    pub(super) bounds: [f32; 2],
}

impl TapBlocks {
    /// Arranges weights `[channel, tap]` with the scale of each channel.
    ///
    /// # Panics
    /// If there is not a scale, a factor and a shift for each channel.
    pub(crate) fn new(codes: &[i8], scales: &[f32], rounding: &CodeRounding) -> Self {
        let n_channels = scales.len();
        assert_eq!([rounding.factors.len(), rounding.shifts.len()], [n_channels; 2], "numbers of each channel");
        let n_taps = codes.len() / n_channels.max(1);
        let n_all = n_channels.next_multiple_of(CHANNELS);
        let (per_group, n_groups) = (CHANNELS * GROUP, n_taps.div_ceil(GROUP));
        let mut weights = vec![0; n_all / CHANNELS * n_groups * per_group];
        for (channel, codes) in codes.chunks_exact(n_taps.max(1)).enumerate() {
            let (block, at) = (channel / CHANNELS, place(channel) % CHANNELS);
            for (tap, code) in codes.iter().enumerate() {
                weights[(block * n_groups + tap / GROUP) * per_group + at * GROUP + tap % GROUP] = *code;
            }
        }
        let sum = |channel: usize| {
            let codes = &codes[channel * n_taps..(channel + 1) * n_taps];
            rounding.zero * codes.iter().map(|code| i32::from(*code)).sum::<i32>()
        };
        Self {
            n_channels,
            n_taps,
            weights,
            zeros: arranged(n_channels, sum),
            scales: arranged(n_channels, |channel| scales[channel]),
            factors: arranged(n_channels, |channel| rounding.factors[channel]),
            shifts: arranged(n_channels, |channel| rounding.shifts[channel]),
            bounds: rounding.bounds,
        }
    }
}

/// Returns the place of a channel in the arrangement.
const fn place(channel: usize) -> usize {
    let (block, within) = (channel / CHANNELS, channel % CHANNELS);
    let (lane, vector, i) = (within / 16, within % 16 / 4, within % 4);
    block * CHANNELS + vector * 16 + lane * 4 + i
}

fn arranged<T: Copy + Default>(n_channels: usize, of: impl Fn(usize) -> T) -> Vec<T> {
    let mut all = vec![T::default(); n_channels.next_multiple_of(CHANNELS)];
    (0..n_channels).for_each(|channel| all[place(channel)] = of(channel));
    all
}
