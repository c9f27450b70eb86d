//! int8, int4 and sparse matrix products for GPUs, in CubeCL.
//!
//! These are the CUDA kernels of `briquette-ops`. They do not depend on burn and take buffers as input and
//! output. Weights are in dedicated device memory in their stored format. Each module of kernels documents its
//! formula and layout.

#![expect(missing_docs, reason = "CubeCL's macro generates public items without docs")]

pub mod attention;
pub mod attention_mma;
pub mod bitmask;
pub mod conv;
mod conv2d;
mod conv2d_steps;
pub mod decode;
pub mod dp4a;
pub mod epilogue;
mod fastest;
pub mod few_rows;
pub mod few_rows_sparse;
mod gpu;
mod int4;
mod int8;
mod launch;
mod linear;
pub mod mma;
pub mod norm;
pub mod pack;
pub mod quantize_rows;
pub mod rotary;
pub mod softmax;
mod stored;
mod table;
mod way;
pub mod wgmma;

pub use conv2d::DeviceConv2d;
pub use conv2d_steps::Conv2dSteps;
pub use cubecl_core::ir::ElemType;
pub use fastest::WAYS;
pub use gpu::{DeviceBuffer, Gpu, keep_kernels};
pub use int4::Int4;
pub use int8::Int8;
pub use launch::{
    DeviceEpilogue, DeviceHeads, Floats, Ids, NormWeights, ScoreMask, attended, normed, rotated, softmax_of,
};
pub use linear::CodedRows;
pub use table::DeviceTable;
pub use way::Way;

/// 32-bit floats.
pub const F32: ElemType = ElemType::Float(cubecl_core::ir::FloatKind::F32);

/// 16-bit brain floats.
pub const BF16: ElemType = ElemType::Float(cubecl_core::ir::FloatKind::BF16);
