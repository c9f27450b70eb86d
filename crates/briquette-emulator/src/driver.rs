//! The functions of `libcuda.so` that CubeCL calls. Every call is synchronous, so streams have no effect.
#![expect(unsafe_code, reason = "these are functions of a C library")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

mod kernels;
mod memory;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::memory::Guarded;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_IMAGE: c_int = 200;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;
const LAUNCH_FAILED: c_int = 719;

/// The handle of every context and stream. It is never dereferenced, but must not be null.
const SOMETHING: *mut c_void = std::ptr::without_provenance_mut(0x1000);

/// The state of the device.
struct Device {
    total: usize,
    used: usize,
    allocations: BTreeMap<u64, Guarded>,
    /// A sticky error with which every later call fails, as on a real device; 0 for none.
    broken: c_int,
    log: bool,
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn device() -> MutexGuard<'static, Device> {
    static DEVICE: OnceLock<Mutex<Device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let total = number("BRIQUETTE_EMULATED_MEMORY", 16 << 30);
        let log = std::env::var_os("BRIQUETTE_EMULATED_LOG").is_some();
        Mutex::new(Device { total, used: 0, allocations: BTreeMap::new(), broken: 0, log })
    });
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the compute capability, 75 for 7.5.
fn capability() -> usize {
    number("BRIQUETTE_EMULATED_CAPABILITY", 80)
}

pub(crate) fn say(text: &str) {
    // This is only a log, so errors of a closed stderr are ignored.
    let _ = writeln!(std::io::stderr(), "[emulated CUDA] {text}");
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {$(
        /// # Safety
        /// See the function of this name in CUDA's driver API.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $ty),*) -> c_int {
            // SAFETY: guaranteed by the caller.
            #[allow(unused_unsafe, reason = "some functions have no pointers")]
            unsafe { $body }
        }
    )*};
}

pub(crate) use functions;

// Functions for the device.
functions! {
    cuInit(_flags: c_uint) { 0 }
    cuDriverGetVersion(out: *mut c_int) { *out = 13000; 0 }
    cuDeviceGetCount(out: *mut c_int) { *out = 1; 0 }
    cuDeviceGet(out: *mut c_int, i: c_int) { *out = i; if i == 0 { 0 } else { 101 } }
    cuDeviceGetName(out: *mut c_char, n: c_int, _device: c_int) { copy_text(out, n, c"Emulated GTX") }
    cuDeviceGetPCIBusId(out: *mut c_char, n: c_int, _device: c_int) { copy_text(out, n, c"0000:00:00.0") }
    cuDeviceTotalMem_v2(out: *mut usize, _device: c_int) { *out = device().total; 0 }
    cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, _device: c_int) { *out = attribute_of(attribute); 0 }
    cuDevicePrimaryCtxRetain(out: *mut *mut c_void, _device: c_int) { *out = SOMETHING; 0 }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) { 0 }
    cuDeviceCanAccessPeer(out: *mut c_int, _device: c_int, _other: c_int) { *out = 0; 0 }
    cuCtxSetCurrent(_context: *mut c_void) { 0 }
    cuCtxGetCurrent(out: *mut *mut c_void) { *out = SOMETHING; 0 }
    cuCtxGetDevice(out: *mut c_int) { *out = 0; 0 }
    cuCtxSynchronize() { device().broken }
    cuCtxGetStreamPriorityRange(least: *mut c_int, most: *mut c_int) { (*least, *most) = (0, -5); 0 }
}

fn attribute_of(attribute: c_int) -> c_int {
    match attribute {
        1..=3 => 1024,    // threads of a block
        4 => 64,          // along z
        5 => c_int::MAX,  // blocks along x
        6 | 7 => 65535,   // along y and z
        8 => 48 << 10,    // shared memory of a block
        10 => 32,         // threads of a warp
        12 | 82 => 65536, // registers
        16 => 4,          // multiprocessors
        39 => 2048,       // threads of a multiprocessor
        75 => capability() as c_int / 10,
        76 => capability() as c_int % 10,
        81 | 97 => 99 << 10, // shared memory that a launch can request
        _ => 1,
    }
}

/// # Safety
/// `out` has room for `n` characters.
unsafe fn copy_text(out: *mut c_char, n: c_int, text: &CStr) -> c_int {
    let bytes = text.to_bytes_with_nul();
    if (n as usize) < bytes.len() {
        return INVALID_VALUE;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    0
}

// Functions for streams and events.
functions! {
    cuStreamCreate(out: *mut *mut c_void, _flags: c_uint) { *out = SOMETHING; 0 }
    cuStreamCreateWithPriority(out: *mut *mut c_void, _flags: c_uint, _priority: c_int) { *out = SOMETHING; 0 }
    cuStreamDestroy_v2(_stream: *mut c_void) { 0 }
    cuStreamSynchronize(_stream: *mut c_void) { device().broken }
    cuStreamQuery(_stream: *mut c_void) { device().broken }
    cuStreamWaitEvent(_stream: *mut c_void, _event: *mut c_void, _flags: c_uint) { 0 }
    cuStreamIsCapturing(_stream: *mut c_void, out: *mut c_int) { *out = 0; 0 }
    cuLaunchHostFunc(_stream: *mut c_void, function: extern "C" fn(*mut c_void), data: *mut c_void) { function(data); 0 }
    cuEventCreate(out: *mut *mut Instant, _flags: c_uint) { *out = Box::into_raw(Box::new(Instant::now())); 0 }
    cuEventRecord(event: *mut Instant, _stream: *mut c_void) { *event = Instant::now(); 0 }
    cuEventSynchronize(_event: *mut Instant) { device().broken }
    cuEventQuery(_event: *mut Instant) { device().broken }
    cuEventDestroy_v2(event: *mut Instant) { drop(Box::from_raw(event)); 0 }
    cuEventElapsedTime_v2(out: *mut f32, from: *const Instant, to: *const Instant) { elapsed(out, from, to) }
    cuEventElapsedTime(out: *mut f32, from: *const Instant, to: *const Instant) { elapsed(out, from, to) }
}

/// # Safety
/// All three pointers are valid.
unsafe fn elapsed(out: *mut f32, from: *const Instant, to: *const Instant) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { *out = (*to).saturating_duration_since(*from).as_secs_f32() * 1e3 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, out: *mut *const c_char) -> c_int {
    let name = match error {
        0 => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: the caller guarantees the pointer.
    unsafe { *out = name.as_ptr() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, out: *mut *const c_char) -> c_int {
    cuGetErrorName(error, out)
}
