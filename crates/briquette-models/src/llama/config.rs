//! The configuration of Llama, as in Hugging Face's config.json.

use crate::config::check_sizes;
use crate::fresh;
use serde::{Deserialize, Serialize};

/// Configuration of a [`crate::Llama`], with the keys of config.json. Biases are detected from the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Width inside a feed-forward block.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; by default the number of query heads.
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Width of a head; by default the width divided by the number of heads.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Longest input in tokens.
    pub max_position_embeddings: usize,
    /// Epsilon of the norms.
    #[serde(default = "small")]
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// Scaling of rotary frequencies in older files.
    #[serde(default)]
    pub rope_scaling: Option<RopeParameters>,
    /// Scaling and base of rotary frequencies in newer files.
    #[serde(default)]
    pub rope_parameters: Option<RopeParameters>,
    /// Whether embedding and head share their weights.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Activation function of the gate; only `silu` is supported.
    #[serde(default)]
    pub hidden_act: Option<String>,
    /// Attention window in tokens. Longer inputs are not supported here.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// Whether the sliding window is used, as in Qwen2.
    #[serde(default)]
    pub use_sliding_window: Option<bool>,
    /// Whether query, key and value projections have biases.
    #[serde(skip)]
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    #[serde(skip)]
    pub output_bias: bool,
    /// Whether feed-forward layers have biases.
    #[serde(skip)]
    pub mlp_bias: bool,
    /// Standard deviation of the random initialization.
    #[serde(skip, default = "fresh::usual_range")]
    pub initializer_range: f64,
    /// Token whose embedding is initialized to zeros.
    #[serde(skip)]
    pub padding: Option<usize>,
}

/// Scaling of rotary frequencies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RopeParameters {
    /// `default`, `linear` or `llama3`.
    #[serde(default, alias = "type")]
    pub rope_type: Option<String>,
    /// Base of the frequencies.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// Factor by which the supported length grows.
    #[serde(default)]
    pub factor: Option<f64>,
    /// Llama 3: wavelengths above the original length divided by this are scaled fully.
    #[serde(default)]
    pub low_freq_factor: Option<f64>,
    /// Llama 3: wavelengths below the original length divided by this are not scaled.
    #[serde(default)]
    pub high_freq_factor: Option<f64>,
    /// Llama 3: length of the original training.
    #[serde(default)]
    pub original_max_position_embeddings: Option<f64>,
}

fn small() -> f64 {
    1e-6
}

impl LlamaConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let (heads, kv_heads, head) = (self.num_attention_heads, self.n_kv_heads(), self.head_width());
        check_sizes(&[self.vocab_size, self.hidden_size, self.intermediate_size, self.max_position_embeddings])?;
        check_sizes(&[heads, kv_heads, head, self.max_positions()])?;
        if self.rms_norm_eps.is_nan() || self.rms_norm_eps <= 0.0 {
            return Err("rms_norm_eps is not above 0; correct it".into());
        }
        if !head.is_multiple_of(2) || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "{heads} heads of width {head} with {kv_heads} key heads, expected an even width and a divisor of the heads; correct it"
            ));
        }
        self.check_rotary()?;
        match (self.hidden_act.as_deref(), self.rope_type()) {
            (None | Some("silu" | "swish"), "default" | "linear" | "llama3") => Ok(()),
            (None | Some("silu" | "swish"), other) => {
                Err(format!("rope_type is {other:?}, expected default, linear or llama3"))
            }
            (Some(other), _) => Err(format!("hidden_act is {other:?}, expected \"silu\"")),
        }
    }

    /// Refuses rotary settings that give frequencies that are not finite.
    fn check_rotary(&self) -> Result<(), String> {
        let rope = self.rope();
        let settings = [
            ("rope_theta", rope.rope_theta.or(self.rope_theta)),
            ("rope factor", rope.factor),
            ("low_freq_factor", rope.low_freq_factor),
            ("high_freq_factor", rope.high_freq_factor),
            ("original_max_position_embeddings", rope.original_max_position_embeddings),
        ];
        let is_usable = |value: f64| value > 0.0 && (value as f32).is_normal();
        match settings.into_iter().find_map(|(key, value)| Some((key, value.filter(|value| !is_usable(*value))?))) {
            Some((key, value)) => Err(format!("{key} is {value}, expected a number above 0; correct it")),
            None if self.inverse_frequencies().iter().all(|frequency| frequency.is_finite()) => Ok(()),
            None => Err("its rotary frequencies are not finite; correct rope_theta and the rope factors".into()),
        }
    }

    /// Returns the longest supported input, at most the sliding window.
    pub(crate) fn max_positions(&self) -> usize {
        self.window().map_or(self.max_position_embeddings, |window| window.min(self.max_position_embeddings))
    }

    /// Returns the sliding window, if it is used.
    pub(crate) fn window(&self) -> Option<usize> {
        self.sliding_window.filter(|_| self.use_sliding_window != Some(false))
    }

    pub(crate) fn n_kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(crate) fn head_width(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    fn rope(&self) -> RopeParameters {
        self.rope_parameters.clone().or_else(|| self.rope_scaling.clone()).unwrap_or_default()
    }

    fn rope_type(&self) -> &str {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        rope.and_then(|rope| rope.rope_type.as_deref()).unwrap_or("default")
    }

    /// Returns `1 / theta^(2 i / width)`, scaled according to `rope_type`.
    pub(crate) fn inverse_frequencies(&self) -> Vec<f32> {
        let rope = self.rope();
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0) as f32;
        let width = self.head_width();
        let plain = (0..width / 2).map(|pair| 1.0 / theta.powf(2.0 * pair as f32 / width as f32));
        let factor = rope.factor.unwrap_or(1.0) as f32;
        match self.rope_type() {
            "linear" => plain.map(|frequency| frequency / factor).collect(),
            "llama3" => plain.map(|frequency| llama3(frequency, factor, &rope)).collect(),
            _ => plain.collect(),
        }
    }
}

/// Scales a frequency as in Llama 3.1: long wavelengths by `factor`, short ones not at all, with a blend
/// between.
fn llama3(frequency: f32, factor: f32, rope: &RopeParameters) -> f32 {
    let low = rope.low_freq_factor.unwrap_or(1.0) as f32;
    let high = rope.high_freq_factor.unwrap_or(4.0) as f32;
    let trained = rope.original_max_position_embeddings.unwrap_or(8192.0) as f32;
    let wavelength = 2.0 * std::f32::consts::PI / frequency;
    if wavelength > trained / low {
        frequency / factor
    } else if wavelength < trained / high {
        frequency
    } else {
        let blend = (trained / wavelength - low) / (high - low);
        (1.0 - blend) * frequency / factor + blend * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(extra: &str) -> LlamaConfig {
        let sizes = "\"vocab_size\": 9, \"hidden_size\": 16, \"intermediate_size\": 8, \"num_hidden_layers\": 1";
        let rest = "\"num_attention_heads\": 4, \"max_position_embeddings\": 64";
        serde_json::from_str(&format!("{{{sizes}, {rest}{extra}}}")).unwrap()
    }

    #[test]
    fn rotary_settings_of_zero_are_refused() {
        for (rope, key) in [
            (", \"rope_theta\": 0.0", "rope_theta is 0"),
            (", \"rope_theta\": -1.0", "rope_theta is -1"),
            (", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.0}", "rope factor is 0"),
            (
                ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 0}",
                "low_freq_factor",
            ),
            (", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e-300}", "rope factor"),
        ] {
            let error = config(rope).validate().unwrap_err();
            assert!(error.contains(key), "{rope}: {error}");
        }
        assert_eq!(config(", \"rope_theta\": 10000.0").validate(), Ok(()));
    }

    #[test]
    fn frequencies_fall_with_theta_and_scale_by_the_factor() {
        assert_eq!(config("").inverse_frequencies(), [1.0, 0.01]);
        let stretched = config(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, \"rope_theta\": 100.0");
        assert_eq!(stretched.inverse_frequencies(), [0.5, 0.05]);
    }

    #[test]
    fn a_sliding_window_bounds_the_input_and_sizes_must_agree() {
        assert_eq!(config(", \"sliding_window\": 16").max_positions(), 16);
        assert_eq!(config(", \"sliding_window\": 16, \"use_sliding_window\": false").max_positions(), 64);
        assert!(config("").validate().is_ok());
        for bad in ["\"num_key_value_heads\": 3", "\"head_dim\": 3", "\"rope_scaling\": {\"type\": \"yarn\"}"] {
            assert!(config(&format!(", {bad}")).validate().is_err(), "{bad}");
        }
    }
}
