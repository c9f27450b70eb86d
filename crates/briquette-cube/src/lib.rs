//! int8, int4 and sparse matrix products for GPUs, in CubeCL.
//!
//! The kernels behind the operations of `briquette-kernels` on CUDA. They know nothing of burn: buffers in, buffers out.
//! Weights lie on the device as they are kept, in memory that is theirs alone; a module of kernels each says what it does.

#![expect(missing_docs, reason = "the macro of a kernel writes items without any")]

pub mod bitmask;
pub mod conv;
mod conv2d;
mod cubek;
pub mod decode;
pub mod dp4a;
mod fastest;
pub mod few_rows;
pub mod finish;
mod gpu;
mod launch;
pub mod mma;
pub mod pack;
pub mod quantize_rows;
pub mod sums;
mod weights;

pub use conv2d::{Conv2d, Conv2dSteps};
pub use cubecl_core::ir::ElemType;
pub use cubek::Cubek;
pub use fastest::WAYS;
pub use gpu::{Buffer, Gpu};
pub use launch::{Ending, Floats, Ids};
pub use weights::{Int4, Int8, Table, Way};

/// 32-bit floats.
pub const F32: ElemType = ElemType::Float(cubecl_core::ir::FloatKind::F32);
