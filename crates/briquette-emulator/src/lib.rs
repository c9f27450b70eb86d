//! A CUDA device emulated on the CPU, for tests on machines without a GPU.
//!
//! It runs the CUDA C++ that `cubecl-cpp` generates. The source is adapted ([`to_cpp`]), compiled by the C++
//! compiler together with the headers in `cpp/`, and called ([`LoadedKernel`]). The threads of a block are
//! fibers on one thread, so launches are deterministic. Tests of kernels use this crate as a library. As a
//! shared library, it has the functions of `libcuda.so` and `libnvrtc.so` that CubeCL calls, so that programs
//! built for CUDA run without a GPU:
//!
//! ```text
//! ln -s libbriquette_emulator.so libcuda.so
//! ln -s libbriquette_emulator.so libnvrtc.so
//! CUDA_PATH=. LD_LIBRARY_PATH=. briquette eval ...
//! ```
//!
//! It checks results and memory accesses, not speed. It supports int8 matrix instructions, but no other matrix
//! instructions, asynchronous copies or clusters: kernels that use these do not compile.
//!
//! | variable | meaning |
//! |---|---|
//! | `BRIQUETTE_EMULATED_CAPABILITY` | compute capability, default 80; 75 has no matrix instructions |
//! | `BRIQUETTE_EMULATED_MEMORY` | device memory in bytes, default 16 GiB |
//! | `BRIQUETTE_EMULATED_CACHE` | directory for compiled kernels |
//! | `BRIQUETTE_EMULATED_LOG` | 1 prints each launch and allocation |

mod driver;
mod kernel;
mod memory;
mod nvrtc;
mod translate;

pub use kernel::{LaunchConfig, LoadedKernel, Mistake, compile, compiler, load};
pub use memory::{Guarded, Side};
pub use translate::to_cpp;
