//! Modules with one kernel each, and launches.
#![expect(unsafe_code, reason = "these are functions of a C library")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Device, ILLEGAL_ADDRESS, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND, device, functions, say};
use crate::kernel::{LaunchConfig, LoadedKernel};
use crate::nvrtc::TOKEN;

/// Name fragments of CubeCL kernels that only measure the speed of a device and would take minutes here. They
/// are not run: a launch sleeps for the expected time instead, because CubeCL repeats shorter launches.
const MEASURING: [&str; 2] = ["_throughput_", "prime_buffer"];
const MEASURED: Duration = Duration::from_millis(20);

/// A kernel of a module.
struct Function {
    kernel: LoadedKernel,
    name: String,
}

// Functions for kernels, which are never unloaded.
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
        let config = LaunchConfig {
            blocks: [grid_x, grid_y, grid_z],
            threads: [block_x, block_y, block_z],
            shared_bytes: shared_bytes as usize,
            backwards: false,
            saturates: true,
        };
        launch(&*function, &config, parameters)
    }
}

/// # Safety
/// The image ends with a zero byte, and `out` is valid.
unsafe fn load(out: *mut *mut Function, image: *const c_char) -> c_int {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let Some(path) = text.strip_prefix(TOKEN) else { return INVALID_IMAGE };
    // SAFETY: `nvrtcCompileProgram` wrote the path.
    match unsafe { LoadedKernel::open(Path::new(path)) } {
        Ok(kernel) => {
            let function = Box::new(Function { kernel, name: String::new() });
            // SAFETY: guaranteed by the caller.
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
/// See `cuLaunchKernel`.
unsafe fn launch(function: &Function, config: &LaunchConfig, parameters: *const *mut c_void) -> c_int {
    let Device { broken, log, .. } = *device();
    if broken != 0 {
        return broken;
    }
    if config.blocks.contains(&0) || config.blocks[1..].iter().any(|n| *n > 65535) {
        return INVALID_VALUE;
    }
    if MEASURING.iter().any(|part| function.name.contains(part)) {
        std::thread::sleep(MEASURED);
        return 0;
    }
    let start = Instant::now();
    let n = function.kernel.parameter_bytes().len();
    // SAFETY: guaranteed by the caller; a kernel without parameters may be given none.
    let result = unsafe {
        let parameters = if n == 0 { &[] } else { std::slice::from_raw_parts(parameters, n) };
        function.kernel.launch(config, parameters)
    };
    if log {
        say(&format!("{} {:?} of {:?}: {:?}", function.name, config.blocks, config.threads, start.elapsed()));
    }
    let Err(mistake) = result else { return 0 };
    let mut device = device();
    let touched =
        device.allocations.values().find_map(|memory| Some((memory.offset_of(mistake.fault)?, memory.n_bytes())));
    let place = touched.map_or_else(String::new, |(at, n)| format!(" byte {at} of an allocation of {n} bytes"));
    say(&format!("{}: {}{place}", function.name, mistake.text));
    device.broken = if mistake.fault.is_null() { LAUNCH_FAILED } else { ILLEGAL_ADDRESS };
    device.broken
}
