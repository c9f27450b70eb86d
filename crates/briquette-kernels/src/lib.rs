//! int8, int4 and sparse matrix products as burn operations.
//!
//! Weights are quantized ahead and packed once ([`PackedInt8`], about one byte for each weight); activations are
//! quantized by the row as they come; products accumulate in 32-bit integers, exactly, and leave as f32:
//! `y = (xq · wqᵀ) * sx * sw + bias`. Every instruction set gives the same bits, those of the scalar reference.
//!
//! Non-goals: choosing scales (`briquette-methods`), files (`briquette-formats`), layers (`briquette-nn`).
//!
//! ```
//! use briquette_kernels::{ActivationGrid, PackedInt8, active_path, int8_linear};
//!
//! let weights = PackedInt8::new(&[127, 0, 0, 127], &[1.0 / 127.0; 2], 2, 2)?; // the identity
//! let mut y = [0.0; 2];
//! int8_linear(active_path(), &[1.0_f32, -0.5], 1, ActivationGrid::Symmetric, &weights, Some(&[10.0, 20.0]), &mut y);
//! assert!((y[0] - 11.0).abs() < 0.01 && (y[1] - 19.5).abs() < 0.01);
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod activations;
mod conv2d;
mod feed_forward;
mod float;
mod float_product;
mod float_rows;
mod int4;
mod int8_attention;
mod linear;
pub mod ops;
mod packed;
mod panel_layout;
mod panels;
mod quantize_rows;
mod simd;
mod sparse;
mod weight_only;
mod weights;

pub use activations::{ActivationElement, ActivationGrid};
pub use briquette_core::code_rows::CodeRows;
pub use briquette_core::embedding::{Int8Embedding, int8_embedding};
pub use briquette_core::float::{Path, active_path};
pub use conv2d::{Conv2dShape, ConvEpilogue, Int8Conv2d, PackedConv2d, int8_conv2d};
pub use feed_forward::{FeedForward, int8_feed_forward};
pub use float::FloatConv2d;
pub use float_product::float_product;
pub use int4::{PackedInt4, int4_linear};
pub use int8_attention::{SelfAttention, int8_self_attention};
pub use linear::int8_linear;
pub use packed::PackedInt8;
pub use panel_layout::MAX_DEPTH;
pub use quantize_rows::{QuantizedRows, quantize_rows};
pub use simd::register_peak;
pub use sparse::SparseInt8;
pub use weight_only::weight_only_linear;
pub use weights::Int8Weights;
