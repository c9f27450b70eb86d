//! int8, int4 and sparse matrix products for GPUs, in CubeCL.
//!
//! The kernels behind the operations of `briquette-cpu` on CUDA. They know nothing of burn: buffers in, buffers out.
//! Weights lie on the device as they are kept, in memory that is theirs alone; a module of kernels each says what it does.

#![expect(missing_docs, reason = "the macro of a kernel writes items without any")]

pub mod bitmask;
pub mod conv;
mod conv2d;
mod conv2d_steps;
mod cubek;
pub mod decode;
pub mod dp4a;
pub mod epilogue;
mod fastest;
pub mod few_rows;
mod gpu;
mod int4;
mod int8;
mod launch;
mod linear;
pub mod mma;
pub mod pack;
pub mod quantize_rows;
mod stored;
pub mod sums;
mod table;
mod way;

pub use conv2d::DeviceConv2d;
pub use conv2d_steps::Conv2dSteps;
pub use cubecl_core::ir::ElemType;
pub use cubek::Cubek;
pub use fastest::WAYS;
pub use gpu::{DeviceBuffer, Gpu};
pub use int4::Int4;
pub use int8::Int8;
pub use launch::{DeviceEpilogue, Floats, Ids};
pub use table::DeviceTable;
pub use way::Way;

/// 32-bit floats.
pub const F32: ElemType = ElemType::Float(cubecl_core::ir::FloatKind::F32);
