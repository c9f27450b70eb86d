//! CPU kernels over slices: int8, int4 and sparse matrix products, convolutions, attention and norms.
//!
//! Weights are quantized ahead of time and packed once ([`PackedInt8`], about one byte per weight). Activations
//! are quantized per row at run time. Products accumulate exactly in 32-bit integers and are converted to f32:
//! `y = (xq · wqᵀ) * sx * sw + bias`. Every instruction set gives the same bits as the scalar reference.
//!
//! Non-goals: choosing scales (`briquette-methods`), burn (`briquette-ops`), files (`briquette-formats`),
//! layers (`briquette-nn`).
//!
//! ```
//! use briquette_cpu::{ActivationGrid, PackedInt8, active_level, int8_linear};
//!
//! let weights = PackedInt8::new(&[127, 0, 0, 127], &[1.0 / 127.0; 2], 2, 2)?; // the identity
//! let mut y = [0.0; 2];
//! int8_linear(active_level(), &[1.0_f32, -0.5], 1, ActivationGrid::Symmetric, &weights, Some(&[10.0, 20.0]), &mut y);
//! assert!((y[0] - 11.0).abs() < 0.01 && (y[1] - 19.5).abs() < 0.01);
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod activations;
pub mod code_rows;
mod conv2d;
pub mod embedding;
mod feed_forward;
pub mod float;
mod float_product;
mod float_rows;
mod group_layout;
mod grouped_rows;
mod image_codes;
mod int4;
mod int8_attention;
mod linear;
mod packed;
mod panel_layout;
mod panels;
mod quantize_rows;
mod simd;
mod sparse;
mod w4a8;
mod weight_only;
mod weights;

pub use crate::code_rows::CodeRows;
pub use crate::embedding::{Int8Embedding, int8_embedding};
pub use activations::{ActivationElement, ActivationGrid, CodeGrid, InputRounding};
pub use briquette_core::simd::{SimdLevel, active_level};
pub use conv2d::{Conv2dShape, ConvEpilogue, FixedConv2d, ImageOrder, Int8Conv2d, OutputBounds, PackedConv2d};
pub use conv2d::{fixed_conv2d, int8_conv2d};
pub use feed_forward::{FeedForward, int8_feed_forward};
pub use float::FloatConv2d;
pub use float_product::float_product;
pub use image_codes::ImageCodes;
pub use int4::{PackedInt4, int4_linear};
pub use int8_attention::{SelfAttention, int8_self_attention};
pub use linear::int8_linear;
pub use packed::PackedInt8;
pub use panel_layout::{MAX_DEPTH, check_depth};
pub use quantize_rows::{QuantizedRows, quantize_rows, round_rows};
pub use simd::register_peak;
pub use sparse::SparseInt8;
pub use w4a8::{PackedW4A8, w4a8_linear};
pub use weight_only::weight_only_linear;
pub use weights::{Int8Weights, codes_of};
