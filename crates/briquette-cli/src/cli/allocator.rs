//! The allocator of the command.
//!
//! It counts bytes, enforces the limits of confined threads, and exits with a one-line error if the system has
//! no memory left.
#![allow(unsafe_code)]

use briquette::core::confined;
use briquette::core::memory::MemoryMeter;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
/// Whether errors are also printed as JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The exit code of an out-of-memory error, as for [`briquette::ErrorKind::Io`].
const EXIT_CODE: i32 = 5;

/// The system allocator with a count of allocated bytes.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Enables JSON output for the out-of-memory error.
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

/// Counts allocated memory; exits the process if the system returned none.
///
/// By default, Rust would print several lines and abort. An unfinished output remains as a partial directory,
/// which the next run removes.
fn counted(pointer: *mut u8, n_bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        end_without_memory(n_bytes);
    }
    add(n_bytes);
    pointer
}

/// The state of the last line on stderr, which only one thread prints: one of the constants below, or
/// [`PRINTED`] plus the exit code.
static LAST_LINE: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
const OUT_OF_MEMORY: u32 = 1;
const PRINTING: u32 = 2;
const PRINTED: u32 = 256;

/// Prints the error that ends the command, and a failed allocation of another thread adds no line.
pub(super) fn print_last_line(line: &str, exit_code: u8) {
    match LAST_LINE.compare_exchange(NONE, PRINTING, Relaxed, Relaxed) {
        Err(OUT_OF_MEMORY) => end_after_last_line(),
        _ => print_to(2, line),
    }
    LAST_LINE.store(PRINTED + u32::from(exit_code), Relaxed);
}

/// Prints one line and exits, without any allocation.
#[cold]
fn end_without_memory(n_bytes: usize) -> ! {
    if LAST_LINE.compare_exchange(NONE, OUT_OF_MEMORY, Relaxed, Relaxed).is_ok() {
        print_out_of_memory(n_bytes, LIVE.load(Relaxed));
        signal_hook::low_level::exit(EXIT_CODE);
    }
    end_after_last_line()
}

/// Waits until another thread has printed the last line. Exits with its code if that thread does not.
fn end_after_last_line() -> ! {
    loop {
        let state = LAST_LINE.load(Relaxed);
        if state >= PRINTED {
            signal_hook::low_level::exit((state - PRINTED) as i32);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn print_out_of_memory(n_bytes: usize, live: u64) {
    let mut message = Fixed { bytes: [0; 256], len: 0 };
    let _ = write!(
        message,
        "out of memory: cannot allocate {n_bytes} bytes beyond the {live} in use; free some memory or raise its limit (ulimit -v)"
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

/// Writes to a descriptor without the locks and buffers of `std`, which this thread may hold.
fn print_to(descriptor: i32, text: &str) {
    // SAFETY: descriptors 1 and 2 stay open for the lifetime of the process, and `ManuallyDrop` never closes
    // them.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    let _ = std::mem::ManuallyDrop::new(file).write_all(text.as_bytes());
}

/// Text in a buffer of fixed size; longer text is truncated.
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

// SAFETY: every call forwards its arguments to `System` unchanged and returns its result unchanged. The
// counters are not part of the allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        confined::take(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`, which is the same for `System`.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        confined::take(layout.size());
        // SAFETY: as for `alloc`.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) };
        subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        confined::take(new_size);
        // SAFETY: as for `dealloc`.
        let moved = counted(unsafe { System.realloc(pointer, layout, new_size) }, new_size);
        subtract(layout.size());
        moved
    }
}

/// The meter of allocated bytes that are not freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocated;

/// Values of glibc's allocator.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use nix::libc::c_int;

    /// Blocks from this size on are mapped one by one, so that they are unmapped when they are freed: the initial value.
    pub(super) const MMAP_THRESHOLD: c_int = 128 * 1024;
    /// The largest value, which glibc reaches when blocks of this size are freed.
    pub(super) const LARGEST_MMAP_THRESHOLD: c_int = 32 * 1024 * 1024;
    /// The number of blocks that may be mapped one by one: the initial value.
    pub(super) const MMAP_MAX: c_int = 65_536;
}

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

    /// glibc keeps tens of megabytes of freed lists, and raises its thresholds after each large one.
    fn release_freed(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: the functions have no preconditions.
        unsafe {
            nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, glibc::MMAP_THRESHOLD);
            nix::libc::malloc_trim(0);
        }
    }

    fn keep_freed(&self, keeps: bool) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: the functions have no preconditions.
        unsafe {
            let (n_mapped, trimmed) =
                if keeps { (0, nix::libc::c_int::MAX) } else { (glibc::MMAP_MAX, 2 * glibc::LARGEST_MMAP_THRESHOLD) };
            nix::libc::mallopt(nix::libc::M_MMAP_MAX, n_mapped);
            nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, trimmed);
            if !keeps {
                nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, glibc::LARGEST_MMAP_THRESHOLD);
                nix::libc::malloc_trim(0);
            }
        }
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        let _ = keeps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use briquette::core::memory::KeptMemory;

    /// Returns the number of pages that the system cleared for this thread so far.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn n_faults() -> u64 {
        let found = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = found.rsplit(')').next().unwrap();
        after_name.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn large_blocks_are_used_again_while_freed_memory_is_kept() {
        let of_a_block = || {
            let before = n_faults();
            // Arenas of threads other than the first one have heaps of 64 MiB.
            std::hint::black_box(vec![1_u8; 16 << 20]);
            n_faults() - before
        };
        let (_kept, first) = (KeptMemory::of(&Allocated), of_a_block());
        let again = of_a_block();
        assert!(again < first / 4, "{again} of {first}");
    }

    #[test]
    fn allocated_bytes_are_counted_until_they_are_freed() {
        /// Bytes that other tests in this process may allocate or free at the same time.
        const OTHERS: u64 = 16 << 20;
        let before = LIVE.load(Relaxed);
        let held = vec![1_u8; 64 << 20];
        assert!(LIVE.load(Relaxed) + OTHERS >= before + (64 << 20));
        drop(held);
        assert!(LIVE.load(Relaxed) < before + OTHERS && PEAK.load(Relaxed) >= 64 << 20);
    }
}
