//! Runs a kernel's CUDA C++ on the CPU, thread by thread.
//!
//! Each launch runs twice: with threads in opposite orders, with different garbage in shared memory, and with
//! a guard page first after the buffers, then before them. It fails in these cases:
//!
//! - The two runs differ, because a barrier is missing.
//! - A buffer is accessed out of bounds.
//! - Threads of a block wait at different barriers.
//! - Not all threads of a warp reach a shuffle or matrix product.
//! - A conversion, shift or index is undefined in C++.
//!
//! Results may differ from those of a GPU if the GPU contracts a product and a sum to one rounding, which the
//! emulator never does. The last bits of exp, log and similar functions also differ. Diverging half-warps,
//! alignment and speed are not emulated.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use briquette_emulator::{Guarded, LaunchConfig, LoadedKernel, Mistake, Side, compiler, to_cpp};

use cubecl_core::InfoBuilder;
use cubecl_core::ScalarArgType;
use cubecl_core::ir::{AddressType, ElemType};
use cubecl_core::prelude::CubeElement;
use cubecl_runtime::kernel::CubeKernel;

use super::cuda::{CudaSource, Gpu};

/// A kernel that runs on the CPU.
pub(crate) struct Emulated {
    source: CudaSource,
    compiled: Arc<LoadedKernel>,
}

/// An argument that the kernel reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
}

/// An argument passed by value.
#[derive(Clone, Debug)]
pub(crate) struct ByValue {
    bytes: Vec<u8>,
    elem: ElemType,
}

impl Buffer {
    pub(crate) fn of<T: CubeElement>(values: &[T]) -> Self {
        Self { bytes: T::as_bytes(values).to_vec() }
    }

    /// Returns an output of `len` values with every byte 0x7f: 3.4e38 as `f32`, 127 as `i8`.
    pub(crate) fn poisoned<T: CubeElement>(len: usize) -> Self {
        Self { bytes: vec![0x7f; len * size_of::<T>()] }
    }

    pub(crate) fn to_vec<T: CubeElement>(&self) -> Vec<T> {
        // Read value by value, because the vector has only the alignment of bytes.
        self.bytes
            .chunks_exact(size_of::<T>())
            .map(|bytes| T::from_bytes(&Aligned::of(bytes).0[..bytes.len()])[0])
            .collect()
    }
}

#[repr(align(16))]
struct Aligned([u8; 16]);

impl Aligned {
    fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self([0; 16]);
        aligned.0[..bytes.len()].copy_from_slice(bytes);
        aligned
    }
}

impl ByValue {
    pub(crate) fn of<T: ScalarArgType>(value: T) -> Self {
        Self { bytes: T::as_bytes(&[value]).to_vec(), elem: T::cube_type() }
    }
}

impl Emulated {
    /// Compiles a kernel, including its block size.
    ///
    /// Returns `None` if there is no C++ compiler and `BRIQUETTE_NO_CXX=1` allows the test to be skipped.
    ///
    /// # Panics
    /// If there is no C++ compiler, or the kernel uses features that the emulator does not support.
    pub(crate) fn new(gpu: Gpu, kernel: Box<dyn CubeKernel>) -> Option<Self> {
        static COMPILER: OnceLock<Option<PathBuf>> = OnceLock::new();
        let Some(compiler) = COMPILER.get_or_init(compiler) else {
            let skip = std::env::var_os("BRIQUETTE_NO_CXX").is_some_and(|value| value == "1");
            assert!(skip, "no C++ compiler, so no kernel is checked: install g++, or set BRIQUETTE_NO_CXX=1 to skip");
            return None;
        };
        let source = gpu.source(&*kernel);
        let compiled = load(compiler, &source.text);
        Some(Self { source, compiled })
    }

    /// Launches `blocks` and returns the buffers. Buffers and scalars are in the order of the kernel's
    /// parameters.
    ///
    /// # Panics
    /// If the kernel fails in one of the ways above.
    pub(crate) fn run(
        &self,
        blocks: [u32; 3],
        buffers: impl IntoIterator<Item = Buffer>,
        scalars: impl IntoIterator<Item = ByValue>,
    ) -> Vec<Buffer> {
        self.try_run(blocks, buffers, scalars).unwrap_or_else(|error| panic!("{}: {error}", self.source.name))
    }

    /// Like [`Self::run`], but returns the kernel's fault as an error.
    pub(crate) fn try_run(
        &self,
        blocks: [u32; 3],
        buffers: impl IntoIterator<Item = Buffer>,
        scalars: impl IntoIterator<Item = ByValue>,
    ) -> Result<Vec<Buffer>, String> {
        let before: Vec<Vec<u8>> = buffers.into_iter().map(|buffer| buffer.bytes).collect();
        let info = self.info(&before, scalars);
        let launch = |backwards| self.launch(&before, &info, blocks, backwards);
        let (forwards, backwards) = (launch(false)?, launch(true)?);
        if let Some(i) = (0..before.len()).find(|&i| forwards[i] != backwards[i]) {
            return Err(format!("buffer {i} depends on the order of threads, or on uninitialized shared memory"));
        }
        Ok(forwards.into_iter().map(|bytes| Buffer { bytes }).collect())
    }

    /// Launches in one direction and returns the buffers.
    #[expect(unsafe_code, reason = "kernels are called by address")]
    fn launch(
        &self,
        before: &[Vec<u8>],
        info: &[u64],
        blocks: [u32; 3],
        backwards: bool,
    ) -> Result<Vec<Vec<u8>>, String> {
        let side = if backwards { Side::Begin } else { Side::End(16) };
        let mut buffers: Vec<Guarded> = before.iter().map(|bytes| guarded(bytes, side)).collect();
        let pointers: Vec<*mut u8> = buffers.iter().map(Guarded::pointer).collect();
        let mut parameters: Vec<*mut c_void> =
            pointers.iter().map(|pointer| (&raw const *pointer).cast_mut().cast()).collect();
        parameters.push(info.as_ptr().cast_mut().cast());
        self.check_parameters(before.len(), size_of_val(info))?;
        let (threads, shared_bytes) = (self.source.block, self.source.shared_bytes);
        let grid = LaunchConfig { blocks, threads, shared_bytes, backwards, saturates: false };
        // SAFETY: the parameters are those of the kernel, and the buffers belong to this function.
        let result = unsafe { self.compiled.launch(&grid, &parameters) };
        result.map_err(|mistake| describe(&mistake, &buffers))?;
        for (i, buffer) in buffers.iter().enumerate() {
            if let Some(at) = buffer.damage() {
                return Err(format!("byte {at} was written, outside of buffer {i} of {} bytes", buffer.n_bytes()));
            }
        }
        Ok(buffers.iter_mut().map(|buffer| buffer.bytes_mut().to_vec()).collect())
    }

    fn check_parameters(&self, n_buffers: usize, info_bytes: usize) -> Result<(), String> {
        let bytes = self.compiled.parameter_bytes();
        if bytes.len() == n_buffers || bytes.len() == n_buffers + 1 && bytes[n_buffers] == info_bytes {
            return Ok(());
        }
        if bytes.len() != n_buffers + 1 {
            return Err(format!("found {n_buffers} buffers, expected {} parameters", bytes.len()));
        }
        let kernels = bytes[n_buffers];
        Err(format!(
            "found {info_bytes} bytes of scalars and lengths, expected {kernels}: the scalars or their types differ"
        ))
    }

    /// Returns the scalars and the length of each buffer in elements, in the layout of a CubeCL launch.
    fn info(&self, buffers: &[Vec<u8>], scalars: impl IntoIterator<Item = ByValue>) -> Vec<u64> {
        let mut info = InfoBuilder::default();
        for scalar in scalars {
            info.scalars.push_raw(&scalar.bytes, scalar.elem);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            let element_bytes = self.compiled.element_bytes(i);
            assert!(element_bytes > 0, "parameter {i} of {} is not a buffer", self.source.name);
            info.metadata.register_buffer((buffer.len() / element_bytes) as u64, AddressType::U32);
        }
        info.finish(AddressType::U32).data
    }
}

/// Compiles and loads a kernel, once for each source text in this process.
///
/// # Panics
/// If the kernel uses features that the emulator does not support.
fn load(compiler: &Path, cuda: &str) -> Arc<LoadedKernel> {
    static LOADED: Mutex<Option<HashMap<String, Arc<LoadedKernel>>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(found) = loaded.get(cuda) {
        return found.clone();
    }
    let kernel = to_cpp(cuda).and_then(|cpp| briquette_emulator::load(compiler, &cpp));
    let kernel = Arc::new(kernel.unwrap_or_else(|error| panic!("{error}\n{cuda}")));
    loaded.insert(cuda.to_string(), kernel.clone());
    kernel
}

/// The range of a 32-bit index into 16-byte vectors, so that an index that wrapped around is also detected.
const REACH: usize = 64 << 30;

fn guarded(bytes: &[u8], side: Side) -> Guarded {
    let mut buffer = Guarded::new(bytes.len(), side, REACH).expect("memory for a buffer");
    buffer.bytes_mut().copy_from_slice(bytes);
    buffer
}

fn describe(mistake: &Mistake, buffers: &[Guarded]) -> String {
    let touched = buffers.iter().enumerate().find_map(|(i, buffer)| Some((i, buffer.offset_of(mistake.fault)?)));
    let text = &mistake.text;
    match touched {
        Some((i, at)) => format!("{text} byte {at} of buffer {i} of {} bytes", buffers[i].n_bytes()),
        None => text.clone(),
    }
}
