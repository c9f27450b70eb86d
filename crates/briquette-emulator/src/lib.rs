//! A CUDA device made of the CPU, for tests where there is none.
//!
//! It runs the CUDA C++ that `cubecl-cpp` writes: the text is changed a little ([`to_cpp`]), compiled by the C++ compiler
//! together with the headers under `cpp/`, and called ([`LoadedKernel`]). Threads of a block are fibers on one thread, so a launch
//! always does the same. Tests of kernels use it as a library; as a shared library it has the functions of `libcuda.so` and
//! `libnvrtc.so` that CubeCL calls, so that a program built for CUDA runs without one:
//!
//! ```text
//! ln -s libbriquette_emulator.so libcuda.so
//! ln -s libbriquette_emulator.so libnvrtc.so
//! CUDA_PATH=. LD_LIBRARY_PATH=. briquette eval ...
//! ```
//!
//! It checks numbers and accesses, not speed. It has the matrix instructions of int8 and no others, no asynchronous copies
//! and no clusters: kernels with them do not compile. `BRIQUETTE_EMULATED_CAPABILITY` is the compute capability that it
//! claims (75 has no matrix instructions at all; 80 if not set), `BRIQUETTE_EMULATED_MEMORY` the bytes of its memory (16 GiB),
//! `BRIQUETTE_EMULATED_CACHE` a folder that keeps compiled kernels, and `BRIQUETTE_EMULATED_LOG=1` says each launch and allocation.

mod driver;
mod kernel;
mod memory;
mod nvrtc;
mod translate;

pub use kernel::{LaunchConfig, LoadedKernel, Mistake, compile, compiler, load};
pub use memory::{Guarded, Side};
pub use translate::to_cpp;
