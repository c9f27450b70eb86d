//! What is computed in f32 between matrix products, each in one pass over memory: attention, norms, gates, rotary positions,
//! likelihoods; and keys and values that are kept from one token to the next.
//!
//! Loops are written once and compiled for each set of instructions ([`Path`]). What differs by no more than the order of a sum says so.

mod attend;
mod attention;
mod cached_attention;
mod cached_rows;
mod gelu;
mod isa;
mod lanes;
mod likelihood;
mod loops;
mod norm;
mod path;
mod rms_norm;
mod rotate;
mod softmax_codes;
mod swiglu;
mod threads;

pub use attention::{AttentionShape, attention};
pub use cached_attention::cached_attention;
pub use cached_rows::{CacheType, CachedRows};
pub use gelu::gelu;
pub use isa::Isa;
#[cfg(target_arch = "x86_64")]
pub use isa::has_fma;
pub use likelihood::log_sum_exp;
pub use norm::add_norm;
pub use path::{Path, active_path};
pub use rms_norm::rms_norm;
pub use rotate::{Turns, rotate};
pub use softmax_codes::softmax_codes;
pub use swiglu::swiglu;
pub use threads::PAYS;
