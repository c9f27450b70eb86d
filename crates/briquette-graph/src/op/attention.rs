//! Settings of attention.

use serde::Serialize;

/// The settings of an attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Whether a token sees only itself and tokens before it.
    pub causal: bool,
    /// Whether keys and values come from another sequence, the encoder's output; it may have another length.
    pub cross: bool,
    /// Tokens that a token sees, counted back from itself; all where absent. Without `causal`, as many tokens after it.
    pub window: Option<usize>,
    /// Rotary position embedding of queries and keys.
    pub rotary: Option<Rotary>,
    /// Multiplies `q · kᵀ`; `1 / sqrt(width)` where absent.
    pub scale: Option<f64>,
    /// Limits the scaled scores to `cap · tanh(scores / cap)`, before bias and mask.
    pub soft_cap: Option<f64>,
}

impl Attention {
    /// Attention of all tokens to all tokens.
    pub fn full(heads: usize) -> Self {
        Self {
            heads,
            kv_heads: heads,
            causal: false,
            cross: false,
            window: None,
            rotary: None,
            scale: None,
            soft_cap: None,
        }
    }
}

/// The settings of rotary position embeddings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// How long inputs stretch the frequencies.
    pub scaling: RotaryScaling,
    /// The first elements of each head that are turned; all where absent. Its halves form the pairs, and frequencies count it.
    pub width: Option<usize>,
}

/// How long inputs stretch rotary frequencies.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryScaling {
    /// Not at all.
    None,
    /// Frequencies are divided by a factor.
    Linear(f64),
    /// The base grows with inputs longer than `original`: `theta · (factor · n / original - factor + 1)^(w / (w - 2))`, `w` the turned width.
    Dynamic {
        /// How much longer inputs may be.
        factor: f64,
        /// The length of the training.
        original: f64,
    },
    /// YaRN: long waves are divided by a factor, short ones are kept, and a ramp lies between.
    ///
    /// With `w` the turned width, `at(n) = w · ln(original / (2π n)) / (2 ln theta)`, `low = at(fast)` and `high = at(slow)`, rounded down and
    /// up if `is_rounded`, and limited to `0..=w - 1`: pair `i` is divided for the share `clamp((i - low) / (high - low), 0, 1)`.
    Yarn {
        /// Divides the longest waves.
        factor: f64,
        /// Turns over the length of the training from which waves are kept.
        fast: f64,
        /// Turns below which waves are divided.
        slow: f64,
        /// The length of the first training.
        original: f64,
        /// Whether `low` and `high` are rounded.
        is_rounded: bool,
        /// Multiplies cosines and sines.
        amplitude: f64,
    },
    /// LongRoPE: each pair's frequency is divided by a factor of its own, and long inputs have other factors.
    LongRope {
        /// The factors of inputs up to `original` tokens.
        short: Vec<f64>,
        /// The factors of longer inputs.
        long: Vec<f64>,
        /// The length of the first training.
        original: f64,
        /// Multiplies cosines and sines.
        amplitude: f64,
    },
    /// Llama 3.1: long waves are divided by a factor, short ones are kept.
    Llama3 {
        /// Divides the longest waves.
        factor: f64,
        /// Where stretching begins.
        low: f64,
        /// Where stretching ends.
        high: f64,
        /// The length of the first training.
        original: f64,
    },
}
