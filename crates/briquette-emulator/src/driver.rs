//! The functions of `libcuda.so` that CubeCL calls. Everything is done when the call returns; streams are names.
#![expect(unsafe_code, reason = "these are functions of a C library")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::kernel::{Grid, Kernel};
use crate::memory::{Guarded, Side};
use crate::nvrtc::TOKEN;

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_IMAGE: c_int = 200;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;
const LAUNCH_FAILED: c_int = 719;

/// What a context, a stream or a priority is: nothing is known of it but that it is there.
const SOMETHING: *mut c_void = std::ptr::without_provenance_mut(0x1000);
/// Addresses behind each allocation that are nobody's.
const REACH: usize = 1 << 32;
/// What `cuMemAlloc` aligns to.
const ALIGNMENT: usize = 256;

/// What there is on the device.
struct Device {
    total: usize,
    used: usize,
    allocations: BTreeMap<u64, Guarded>,
    /// The error that no call survives, as on a device.
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

/// 75 for 7.5.
fn capability() -> usize {
    number("BRIQUETTE_EMULATED_CAPABILITY", 80)
}

pub(crate) fn say(text: &str) {
    // Where nobody reads it, nothing is lost.
    let _ = writeln!(std::io::stderr(), "[emulated CUDA] {text}");
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {$(
        /// # Safety
        /// As the driver's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $ty),*) -> c_int {
            // SAFETY: the caller's.
            #[allow(unused_unsafe, reason = "some have no pointers")]
            unsafe { $body }
        }
    )*};
}

// The device.
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
        39 => 2048,       // their threads
        75 => capability() as c_int / 10,
        76 => capability() as c_int % 10,
        81 | 97 => 99 << 10, // shared memory that a launch can ask for
        _ => 1,
    }
}

/// # Safety
/// There is room for `n` characters.
unsafe fn copy_text(out: *mut c_char, n: c_int, text: &CStr) -> c_int {
    let bytes = text.to_bytes_with_nul();
    if (n as usize) < bytes.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's.
    unsafe { out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    0
}

// Streams and events.
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
/// All are there.
unsafe fn elapsed(out: *mut f32, from: *const Instant, to: *const Instant) -> c_int {
    // SAFETY: the caller's.
    unsafe { *out = (*to).saturating_duration_since(*from).as_secs_f32() * 1e3 };
    0
}

// Memory.
functions! {
    cuMemAlloc_v2(out: *mut u64, n: usize) { allocate(out, n) }
    cuMemAllocAsync(out: *mut u64, n: usize, _stream: *mut c_void) { allocate(out, n) }
    cuMemFree_v2(pointer: u64) { free(pointer) }
    cuMemFreeAsync(pointer: u64, _stream: *mut c_void) { free(pointer) }
    cuMemAllocHost_v2(out: *mut *mut c_void, n: usize) { host(out, n) }
    cuMemHostAlloc(out: *mut *mut c_void, n: usize, _flags: c_uint) { host(out, n) }
    cuMemFreeHost(pointer: *mut c_void) { free_host(pointer) }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let device = device();
        (*free, *total) = (device.total - device.used, device.total);
        0
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, n: usize, _stream: *mut c_void) { copy(to as _, from, n) }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, n: usize, _stream: *mut c_void) { copy(to, from as _, n) }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, n: usize, _stream: *mut c_void) { copy(to as _, from as _, n) }
    cuMemcpyHtoD_v2(to: u64, from: *const u8, n: usize) { copy(to as _, from, n) }
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, n: usize) { copy(to, from as _, n) }
    cuMemcpy2DAsync_v2(copy: *const Copy2d, _stream: *mut c_void) { (*copy).run() }
    cuMemsetD8Async(to: u64, byte: u8, n: usize, _stream: *mut c_void) { (to as *mut u8).write_bytes(byte, n); 0 }
    cuMemsetD8_v2(to: u64, byte: u8, n: usize) { (to as *mut u8).write_bytes(byte, n); 0 }
}

/// # Safety
/// `out` is there.
unsafe fn allocate(out: *mut u64, n: usize) -> c_int {
    let mut device = device();
    if n == 0 {
        return INVALID_VALUE;
    }
    if n > device.total - device.used {
        return OUT_OF_MEMORY;
    }
    let Some(memory) = Guarded::new(n, Side::End(ALIGNMENT), REACH) else { return OUT_OF_MEMORY };
    let pointer = memory.pointer() as u64;
    device.used += n;
    device.allocations.insert(pointer, memory);
    // SAFETY: the caller's.
    unsafe { *out = pointer };
    0
}

fn free(pointer: u64) -> c_int {
    let mut device = device();
    let Some(memory) = device.allocations.remove(&pointer) else {
        return if pointer == 0 { 0 } else { INVALID_VALUE };
    };
    device.used -= memory.n_bytes();
    match memory.damage() {
        None => 0,
        Some(at) => {
            say(&format!("byte {at} of an allocation of {} was written", memory.n_bytes()));
            device.broken = ILLEGAL_ADDRESS;
            ILLEGAL_ADDRESS
        }
    }
}

/// What host memory begins with: its size.
const HOST_HEADER: usize = 512;

fn host_layout(n: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(n.checked_add(HOST_HEADER)?, HOST_HEADER).ok()
}

/// # Safety
/// `out` is there.
unsafe fn host(out: *mut *mut c_void, n: usize) -> c_int {
    let Some(layout) = host_layout(n) else { return OUT_OF_MEMORY };
    // SAFETY: the layout is not empty; the size is written before the memory that is given away.
    unsafe {
        let memory = std::alloc::alloc(layout);
        if memory.is_null() {
            return OUT_OF_MEMORY;
        }
        memory.cast::<usize>().write(n);
        *out = memory.add(HOST_HEADER).cast();
    }
    0
}

/// # Safety
/// Given by `host`.
unsafe fn free_host(pointer: *mut c_void) -> c_int {
    // SAFETY: the size is where `host` has put it.
    unsafe {
        let memory = pointer.cast::<u8>().sub(HOST_HEADER);
        let Some(layout) = host_layout(memory.cast::<usize>().read()) else { return INVALID_VALUE };
        std::alloc::dealloc(memory, layout);
    }
    0
}

/// # Safety
/// So many bytes are at both.
unsafe fn copy(to: *mut u8, from: *const u8, n: usize) -> c_int {
    // SAFETY: the caller's.
    unsafe { to.copy_from(from, n) };
    0
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2d {
    from: Place2d,
    to: Place2d,
    width: usize,
    height: usize,
}

#[repr(C)]
struct Place2d {
    x: usize,
    y: usize,
    /// 1 for the host.
    kind: c_uint,
    host: *mut u8,
    device: u64,
    array: *mut c_void,
    pitch: usize,
}

impl Place2d {
    fn row(&self, row: usize) -> *mut u8 {
        let begin = if self.kind == 1 { self.host } else { self.device as *mut u8 };
        begin.wrapping_add((self.y + row) * self.pitch + self.x)
    }
}

impl Copy2d {
    /// # Safety
    /// All rows are there.
    unsafe fn run(&self) -> c_int {
        for row in 0..self.height {
            // SAFETY: the caller's.
            unsafe { self.to.row(row).copy_from(self.from.row(row), self.width) };
        }
        0
    }
}

/// A kernel of a module.
struct Function {
    kernel: Kernel,
    name: String,
}

// Kernels. They are never unloaded.
functions! {
    cuModuleLoadData(out: *mut *mut Function, image: *const c_char) { load(out, image) }
    cuModuleUnload(_module: *mut Function) { 0 }
    cuModuleGetFunction(out: *mut *mut Function, module: *mut Function, name: *const c_char) {
        (*module).name = CStr::from_ptr(name).to_string_lossy().into_owned();
        *out = module;
        if out.is_null() { NOT_FOUND } else { 0 }
    }
    cuFuncSetAttribute(_function: *mut Function, _attribute: c_int, _value: c_int) { 0 }
    cuFuncGetAttribute(out: *mut c_int, _attribute: c_int, _function: *mut Function) { *out = 0; 0 }
    cuLaunchKernel(
        function: *const Function,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        _stream: *mut c_void,
        parameters: *const *mut c_void,
        _extra: *const *mut c_void
    ) {
        let grid = Grid {
            blocks: [grid_x, grid_y, grid_z],
            threads: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
            backwards: false,
            saturates: true,
        };
        launch(&*function, &grid, parameters)
    }
}

/// # Safety
/// The image ends with a zero, and `out` is there.
unsafe fn load(out: *mut *mut Function, image: *const c_char) -> c_int {
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let Some(path) = text.strip_prefix(TOKEN) else { return INVALID_IMAGE };
    // SAFETY: made by `nvrtcCompileProgram`.
    match unsafe { Kernel::open(Path::new(path)) } {
        Ok(kernel) => {
            let function = Box::new(Function { kernel, name: String::new() });
            // SAFETY: the caller's.
            unsafe { *out = Box::into_raw(function) };
            0
        }
        Err(error) => {
            say(&error);
            INVALID_IMAGE
        }
    }
}

/// # Safety
/// As `cuLaunchKernel`.
unsafe fn launch(function: &Function, grid: &Grid, parameters: *const *mut c_void) -> c_int {
    let (broken, log) = (device().broken, device().log);
    if broken != 0 {
        return broken;
    }
    if grid.blocks.contains(&0) || grid.blocks[1..].iter().any(|n| *n > 65535) {
        return INVALID_VALUE;
    }
    let start = Instant::now();
    let n = function.kernel.parameter_bytes().len();
    // SAFETY: the caller's; a kernel without parameters may have none given.
    let result = unsafe {
        let parameters = if n == 0 { &[] } else { std::slice::from_raw_parts(parameters, n) };
        function.kernel.launch(grid, parameters)
    };
    if log {
        say(&format!("{} {:?} of {:?}: {:?}", function.name, grid.blocks, grid.threads, start.elapsed()));
    }
    let Err(mistake) = result else { return 0 };
    let mut device = device();
    let touched =
        device.allocations.values().find_map(|memory| Some((memory.offset_of(mistake.fault)?, memory.n_bytes())));
    let place = touched.map_or_else(String::new, |(at, n)| format!(" byte {at} of an allocation of {n}"));
    say(&format!("{}: {}{place}", function.name, mistake.text));
    device.broken = if mistake.fault.is_null() { LAUNCH_FAILED } else { ILLEGAL_ADDRESS };
    device.broken
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
    // SAFETY: the caller's pointer.
    unsafe { *out = name.as_ptr() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, out: *mut *const c_char) -> c_int {
    cuGetErrorName(error, out)
}
