//! Memory of the device and of the host, and copies.
#![expect(unsafe_code, reason = "these are functions of a C library")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

use std::ffi::{c_int, c_uint, c_void};

use super::{ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY, device, functions, say};
use crate::memory::{Guarded, Side};

/// The address range after each allocation that stays unmapped, to detect out-of-bounds accesses.
const REACH: usize = 1 << 32;
/// The alignment of `cuMemAlloc`.
const ALIGNMENT: usize = 256;

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
/// `out` is valid.
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
    if device.log {
        say(&format!("{n} bytes, {} in use", device.used));
    }
    device.allocations.insert(pointer, memory);
    // SAFETY: guaranteed by the caller.
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
            say(&format!("byte {at} was written, outside of an allocation of {} bytes", memory.n_bytes()));
            device.broken = ILLEGAL_ADDRESS;
            ILLEGAL_ADDRESS
        }
    }
}

/// The size of the header before each host allocation, which stores the size of the allocation.
const HOST_HEADER: usize = 512;

fn host_layout(n: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(n.checked_add(HOST_HEADER)?, HOST_HEADER).ok()
}

/// # Safety
/// `out` is valid.
unsafe fn host(out: *mut *mut c_void, n: usize) -> c_int {
    let Some(layout) = host_layout(n) else { return OUT_OF_MEMORY };
    // SAFETY: the layout is not empty; the size is written before the returned memory.
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
/// `host` returned the pointer.
unsafe fn free_host(pointer: *mut c_void) -> c_int {
    // SAFETY: `host` wrote the size there.
    unsafe {
        let memory = pointer.cast::<u8>().sub(HOST_HEADER);
        let Some(layout) = host_layout(memory.cast::<usize>().read()) else { return INVALID_VALUE };
        std::alloc::dealloc(memory, layout);
    }
    0
}

/// # Safety
/// Both point to `n` bytes.
unsafe fn copy(to: *mut u8, from: *const u8, n: usize) -> c_int {
    // SAFETY: guaranteed by the caller.
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
    /// All rows are in valid memory.
    unsafe fn run(&self) -> c_int {
        for row in 0..self.height {
            // SAFETY: guaranteed by the caller.
            unsafe { self.to.row(row).copy_from(self.from.row(row), self.width) };
        }
        0
    }
}
