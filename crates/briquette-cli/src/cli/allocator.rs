//! Counting what is allocated, so that memory is measured and not estimated.
#![allow(unsafe_code)]

use briquette::core::memory::MemoryMeter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a count of the bytes that are out.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(n_bytes: usize) {
    let live = LIVE.fetch_add(n_bytes as u64, Relaxed) + n_bytes as u64;
    PEAK.fetch_max(live, Relaxed);
}

fn subtract(n_bytes: usize) {
    LIVE.fetch_sub(n_bytes as u64, Relaxed);
}

// SAFETY: every call goes to `System` with the arguments as they came, and what it returns is returned as it is; the
// counters are no part of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) };
        subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            add(new_size);
            subtract(layout.size());
        }
        moved
    }
}

/// What this process has allocated and not freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocated;

impl MemoryMeter for Allocated {
    fn name(&self) -> &str {
        "bytes allocated by this process, counted"
    }

    fn live_bytes(&self) -> Option<u64> {
        Some(LIVE.load(Relaxed))
    }

    fn peak_bytes(&self) -> Option<u64> {
        Some(PEAK.load(Relaxed))
    }

    fn reset_peak(&self) {
        PEAK.store(LIVE.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        /// What other tests of this process may allocate or free meanwhile.
        const OTHERS: u64 = 16 << 20;
        let before = LIVE.load(Relaxed);
        let held = vec![1_u8; 64 << 20];
        assert!(LIVE.load(Relaxed) + OTHERS >= before + (64 << 20));
        drop(held);
        assert!(LIVE.load(Relaxed) < before + OTHERS && PEAK.load(Relaxed) >= 64 << 20);
    }
}
