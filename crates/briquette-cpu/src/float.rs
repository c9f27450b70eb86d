//! f32 operations between matrix products, each in one pass over memory.
//!
//! Attention, norms, gates, rotary positions, likelihoods, the gradients for training, and the key-value cache.
//! Loops are written once and compiled for each instruction set ([`SimdLevel`](briquette_core::simd::SimdLevel)). If an operation gives other
//! bits on another level, its documentation says so.

mod activation_function;
mod attend;
mod attend_grad;
mod attention;
mod attention_grad;
mod cached_attention;
mod cached_rows;
mod conv2d;
mod conv2d_shape;
mod gelu;
mod gelu_grad;
mod lanes;
mod likelihood;
mod loops;
mod max_pool2d;
mod norm;
mod norm_grad;
mod rms_norm;
mod rms_norm_grad;
mod rotate;
mod row_sums;
mod score_rule;
mod softmax_codes;
mod swiglu;
mod swiglu_grad;
mod threads;

pub use activation_function::{ActivationFunction, activate, activate_grad};
pub use attention::{AttentionShape, attention};
pub use attention_grad::attention_grad;
pub use cached_attention::{biased_cached_attention, cached_attention};
pub use cached_rows::{CacheType, CachedRows};
pub use conv2d::FloatConv2d;
pub use conv2d_shape::Conv2dShape;
pub use gelu::{coarse_gelu, gelu};
pub use gelu_grad::gelu_grad;
pub use likelihood::log_sum_exp;
pub(crate) use loops::{multiply_columns, on_path};
pub use max_pool2d::{max_pool2d, max_pool2d_grad};
pub use norm::add_norm;
pub use norm_grad::norm_grad;
pub use rms_norm::rms_norm;
pub use rms_norm_grad::rms_norm_grad;
pub use rotate::{RotaryTable, rotate};
pub use score_rule::ScoreRule;
pub use softmax_codes::softmax_codes;
pub use swiglu::swiglu;
pub use swiglu_grad::swiglu_grad;
pub use threads::PAYS;
