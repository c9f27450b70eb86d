//! The allocator of the command. It counts bytes, keeps confined threads to their limits, and ends the process in one line where
//! the system has no memory left.
#![allow(unsafe_code)]

use briquette::core::confined;
use briquette::core::memory::MemoryMeter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
/// Whether an error is to be printed as JSON too.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The exit code where memory is missing, as for [`briquette::ErrorKind::Io`].
const EXIT_CODE: i32 = 5;

/// The system's allocator, with a count of the bytes that are out.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Prints the error of missing memory as JSON too from now on.
pub(crate) fn report_as_json() {
    IS_JSON.store(true, Relaxed);
}

fn add(n_bytes: usize) {
    let live = LIVE.fetch_add(n_bytes as u64, Relaxed) + n_bytes as u64;
    PEAK.fetch_max(live, Relaxed);
}

fn subtract(n_bytes: usize) {
    LIVE.fetch_sub(n_bytes as u64, Relaxed);
    confined::give(n_bytes);
}

/// Counts memory that was asked for. Where the system gave none, the process ends.
///
/// Rust would print several lines and abort. What was being written stays a partial directory, which the next run removes.
fn counted(pointer: *mut u8, n_bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        end_without_memory(n_bytes);
    }
    add(n_bytes);
    pointer
}

/// Prints one line and exits. Nothing in here allocates.
#[cold]
fn end_without_memory(n_bytes: usize) -> ! {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    // Only the first thread prints.
    if !HAS_BEGUN.swap(true, Relaxed) {
        print_out_of_memory(n_bytes, LIVE.load(Relaxed));
        signal_hook::low_level::exit(EXIT_CODE);
    }
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

fn print_out_of_memory(n_bytes: usize, live: u64) {
    let mut message = Fixed { bytes: [0; 256], len: 0 };
    let _ = write!(
        message,
        "out of memory: {n_bytes} bytes more than the {live} in use were refused; free some memory or raise its limit (ulimit -v)"
    );
    let message = message.text();
    let mut line = Fixed { bytes: [0; 256], len: 0 };
    let _ = writeln!(line, "briquette: error: {message}");
    print_to(2, line.text());
    if IS_JSON.load(Relaxed) && !super::text::has_printed() {
        let mut document = Fixed { bytes: [0; 256], len: 0 };
        let _ = writeln!(
            document,
            "{{\"error\": {{\"kind\": \"io\", \"message\": \"{message}\", \"exit_code\": {EXIT_CODE}}}}}"
        );
        print_to(1, document.text());
    }
}

/// Writes to a descriptor past the locks and buffers of `std`, which this thread may be holding.
fn print_to(descriptor: i32, text: &str) {
    // SAFETY: descriptors 1 and 2 stay open as long as the process lives, and `ManuallyDrop` never closes them.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    let _ = std::mem::ManuallyDrop::new(file).write_all(text.as_bytes());
}

/// Text in a buffer of fixed size. What does not fit is left out.
struct Fixed {
    bytes: [u8; 256],
    len: usize,
}

impl Fixed {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Fixed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// SAFETY: every call goes to `System` with the arguments as they came, and what it returns is returned as it is; the
// counters are no part of the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        confined::take(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        confined::take(layout.size());
        // SAFETY: as above.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) };
        subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        confined::take(new_size);
        // SAFETY: as above.
        let moved = counted(unsafe { System.realloc(pointer, layout, new_size) }, new_size);
        subtract(layout.size());
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
