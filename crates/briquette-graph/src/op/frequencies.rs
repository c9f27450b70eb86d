//! Frequencies of rotary position embeddings.
//!
//! Source: `modeling_rope_utils.py` of transformers.

use super::attention::{Rotary, RotaryScaling};
use std::f32::consts::PI;

impl Rotary {
    /// Returns whether the frequencies follow from the length of the input.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RotaryScaling::Dynamic { .. } | RotaryScaling::LongRope { .. })
    }

    /// Returns the factor of cosines and sines.
    pub fn amplitude(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { amplitude, .. } | RotaryScaling::LongRope { amplitude, .. } => amplitude,
            _ => 1.0,
        }
    }

    /// Returns `1 / theta^(2 i / width)` for each pair `i` of a head, scaled for inputs of `n_tokens` tokens.
    pub fn inverse_frequencies(&self, width: usize, n_tokens: usize) -> Vec<f32> {
        let plain = |theta: f32| (0..width / 2).map(move |pair| 1.0 / theta.powf(2.0 * pair as f32 / width as f32));
        let theta = self.theta as f32;
        match self.scaling {
            RotaryScaling::None => plain(theta).collect(),
            RotaryScaling::Linear(factor) => plain(theta).map(|frequency| frequency / factor as f32).collect(),
            RotaryScaling::Dynamic { factor, original } => {
                plain(dynamic(theta, [factor, original], width, n_tokens)).collect()
            }
            RotaryScaling::Yarn { factor, fast, slow, original, is_rounded, .. } => {
                let at = |turns: f64| {
                    width as f64 * (original / (turns * 2.0 * f64::from(PI))).ln() / (2.0 * self.theta.ln())
                };
                let [low, high] = if is_rounded { [at(fast).floor(), at(slow).ceil()] } else { [at(fast), at(slow)] };
                let (low, high) = (low.max(0.0), high.min(width as f64 - 1.0));
                // Avoids a division by zero, as the source does.
                let high = if low == high { high + 0.001 } else { high };
                let share = |pair: usize| ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
                let stretched = |(pair, frequency): (usize, f32)| {
                    frequency / factor as f32 * share(pair) + frequency * (1.0 - share(pair))
                };
                plain(theta).enumerate().map(stretched).collect()
            }
            RotaryScaling::LongRope { ref short, ref long, original, .. } => {
                let factors = if n_tokens as f64 > original { long } else { short };
                plain(theta).zip(factors).map(|(frequency, factor)| frequency / *factor as f32).collect()
            }
            RotaryScaling::Llama3 { factor, low, high, original } => plain(theta)
                .map(|frequency| llama3(frequency, [factor, low, high, original].map(|x| x as f32)))
                .collect(),
        }
    }
}

/// Returns the base for inputs longer than those of training.
fn dynamic(theta: f32, [factor, original]: [f64; 2], width: usize, n_tokens: usize) -> f32 {
    let n = (n_tokens as f64).max(original);
    let growth = factor * n / original - (factor - 1.0);
    (f64::from(theta) * growth.powf(width as f64 / (width as f64 - 2.0))) as f32
}

/// Scales a frequency as in Llama 3.1: long waves by `factor`, short ones not at all, with a blend between.
fn llama3(frequency: f32, [factor, low, high, original]: [f32; 4]) -> f32 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original / low {
        frequency / factor
    } else if wavelength < original / high {
        frequency
    } else {
        let blend = (original / wavelength - low) / (high - low);
        (1.0 - blend) * frequency / factor + blend * frequency
    }
}
