//! Kernels without a GPU: their CUDA C++, and an emulator that runs it on the CPU.
//!
//! ```ignore
//! let gpu = Gpu::sm(80);
//! let kernel = Box::new(Scale::new(gpu.settings(CubeDim::new_1d(64)), gpu.properties(), gpu.target(), buffer(), ()));
//! let Some(kernel) = Emulated::new(gpu, kernel) else { return };
//! let out = kernel.run([4, 1, 1], [Buffer::of(&x), Buffer::poisoned::<f32>(256)], [ByValue::of(n)]);
//! assert_eq!(out[1].to_vec::<f32>(), expected);
//! ```
#![allow(dead_code, reason = "a test uses the part of this that it needs")]

pub(crate) mod cuda;
pub(crate) mod emulator;
pub(crate) mod registry;
