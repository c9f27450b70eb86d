//! Scores in their storage type.

use briquette_core::simd;

const MAGNITUDE: u32 = 0x7fff_ffff;

/// Scores in their storage type: bfloat16 magnitudes can be scanned without widening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scores<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// The bits of bfloat16 values.
    BF16(&'a [u16]),
}

impl<'a> Scores<'a> {
    /// Appends the magnitude bits of every `step`-th score.
    pub(super) fn sample(self, step: usize, out: &mut Vec<u32>) {
        match self {
            Self::F32(scores) => out.extend(scores.iter().step_by(step).map(|score| score.to_bits() & MAGNITUDE)),
            Self::BF16(halves) => {
                out.extend(halves.iter().step_by(step).map(|half| (u32::from(*half) << 16) & MAGNITUDE));
            }
        }
    }

    /// Appends the magnitude bits from `low` to `high`, both included. Returns how many scores are below `low`.
    pub(super) fn collect_between(self, low: u32, high: u32, out: &mut Vec<u32>) -> usize {
        match self {
            Self::F32(scores) => simd::collect_between(scores, low, high, out),
            Self::BF16(halves) => simd::collect_between_bf16(halves, low, high, out),
        }
    }

    /// Returns the scores as f32, widened into `widened` if they are bfloat16.
    pub(super) fn widen(self, widened: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(scores) => scores,
            Self::BF16(halves) => {
                widened.resize(halves.len(), 0.0);
                simd::widen_bf16(halves, widened);
                widened
            }
        }
    }
}
