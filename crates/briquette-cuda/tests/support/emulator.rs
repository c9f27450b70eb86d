//! Runs a kernel's CUDA C++ on the CPU, thread by thread.
//!
//! Each launch runs twice, with the threads taking turns in opposite orders, other garbage in shared memory, and the
//! buffers against a guard page at their end, then at their begin. It fails if the two differ (a missing barrier), if a
//! buffer is read or written outside of itself, if threads of a block wait at different barriers, if a warp's threads do
//! not all come to a shuffle or matrix product, and where C++ leaves a conversion, shift or index undefined.
//!
//! It differs from a GPU where products and sums are contracted to one rounding (here they never are) and in the last
//! bits of exp, log and the like. It does not know of half-warps that run apart, of alignment, or of speed.

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

/// A kernel that can be launched on the CPU.
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

    /// An output of `len` values, each byte of which is 0x7f: 3.4e38 as `f32`, 127 as `i8`.
    pub(crate) fn poisoned<T: CubeElement>(len: usize) -> Self {
        Self { bytes: vec![0x7f; len * size_of::<T>()] }
    }

    pub(crate) fn to_vec<T: CubeElement>(&self) -> Vec<T> {
        // Read value by value, since the bytes are aligned as bytes.
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
    /// Compiles a kernel, whose block is part of it. None where there is no C++ compiler and `BRIQUETTE_NO_CXX=1` says
    /// that the caller's test is to be skipped.
    ///
    /// # Panics
    /// If there is no C++ compiler, or the kernel does what the emulator does not know.
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

    /// The buffers after a launch of `blocks`; buffers and scalars in the order of the kernel's parameters.
    ///
    /// # Panics
    /// If the kernel is wrong in one of the ways above.
    pub(crate) fn run(
        &self,
        blocks: [u32; 3],
        buffers: impl IntoIterator<Item = Buffer>,
        scalars: impl IntoIterator<Item = ByValue>,
    ) -> Vec<Buffer> {
        self.try_run(blocks, buffers, scalars).unwrap_or_else(|error| panic!("{}: {error}", self.source.name))
    }

    /// [`Self::run`], with the kernel's mistake as an error.
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
            return Err(format!("buffer {i} depends on the order of threads, or on what was in shared memory"));
        }
        Ok(forwards.into_iter().map(|bytes| Buffer { bytes }).collect())
    }

    /// The buffers after a launch in one direction.
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
        // SAFETY: the parameters are those of the kernel, and the buffers ours.
        let result = unsafe { self.compiled.launch(&grid, &parameters) };
        result.map_err(|mistake| describe(&mistake, &buffers))?;
        for (i, buffer) in buffers.iter().enumerate() {
            if let Some(at) = buffer.damage() {
                return Err(format!("buffer {i} of {} bytes was written at byte {at}", buffer.n_bytes()));
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
            return Err(format!("the kernel has {} parameters, the launch {n_buffers} buffers", bytes.len()));
        }
        let kernels = bytes[n_buffers];
        Err(format!(
            "the kernel's scalars and lengths have {kernels} bytes, the launch's {info_bytes}: other scalars, or other types"
        ))
    }

    /// The scalars, then each buffer's length in elements, as a launch of CubeCL lays them out.
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

/// Compiles and loads a kernel, once for each text in this process.
///
/// # Panics
/// If the kernel does what the emulator does not know.
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

/// As far behind a buffer as an index of 32 bits can reach in one of 16-byte vectors, so that one that wrapped around is
/// found too.
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
        Some((i, at)) => format!("{text} byte {at} of buffer {i}, which has {}", buffers[i].n_bytes()),
        None => text.clone(),
    }
}
