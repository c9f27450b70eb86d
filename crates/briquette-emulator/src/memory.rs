//! Memory between guard pages.
#![expect(unsafe_code, reason = "pages are mapped and read directly")]

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// The bytes of fresh memory: 127 as i8, 3.4e38 as f32, NaN as f16.
const POISON: u8 = 0x7f;

/// Larger memory is not poisoned, so that unused pages stay unallocated.
const POISONED: usize = 64 << 20;

/// The side at which an out-of-bounds access faults immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The bytes start directly after a guard page.
    Begin,
    /// The bytes end directly before a guard page, as far as this alignment allows.
    End(usize),
}

/// Bytes between guard pages.
///
/// On one side, an out-of-bounds access faults immediately. On the other side there may be a gap before the
/// guard page, which [`damage`](Self::damage) checks afterwards.
#[derive(Debug)]
pub struct Guarded {
    map: *mut u8,
    map_bytes: usize,
    usable: usize,
    begin: usize,
    n_bytes: usize,
}

// SAFETY: nothing else refers to this memory.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Returns poisoned bytes followed by `reach` inaccessible bytes, or `None` if memory cannot be allocated.
    pub fn new(n_bytes: usize, side: Side, reach: usize) -> Option<Self> {
        let page = rustix::param::page_size();
        let usable = (n_bytes / page + 1) * page;
        let map_bytes = page + usable + reach;
        // SAFETY: these are new pages, of which the usable ones are writable.
        let map: *mut u8 = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let map = mmap_anonymous(null_mut(), map_bytes, ProtFlags::empty(), flags).ok()?;
            mprotect(map.byte_add(page), usable, MprotectFlags::READ | MprotectFlags::WRITE).ok()?;
            // Larger memory stays zero, and without allocated pages until it is used.
            if usable <= POISONED {
                map.cast::<u8>().add(page).write_bytes(POISON, usable);
            }
            map.cast()
        };
        let begin = match side {
            Side::Begin => 0,
            Side::End(multiple) => (usable - n_bytes) / multiple * multiple,
        };
        Some(Self { map, map_bytes, usable, begin: page + begin, n_bytes })
    }

    /// Returns bytes that are not poisoned, so that only used pages take memory.
    pub(crate) fn untouched(n_bytes: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: these are new pages.
        let map = unsafe { mmap_anonymous(null_mut(), n_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }.ok()?;
        Some(Self { map: map.cast(), map_bytes: n_bytes, usable: n_bytes, begin: 0, n_bytes })
    }

    /// Returns a pointer to the first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.map.wrapping_add(self.begin)
    }

    /// Returns the number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are usable, and borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.n_bytes) }
    }

    /// Returns the offset of an address from the first byte, if it is in these pages.
    pub fn offset_of(&self, address: *const c_void) -> Option<isize> {
        let from_map = (address as usize).checked_sub(self.map as usize)?;
        (from_map < self.map_bytes).then(|| from_map as isize - self.begin as isize)
    }

    /// Returns the offset of the first byte that was written out of bounds.
    pub fn damage(&self) -> Option<isize> {
        let usable = rustix::param::page_size()..rustix::param::page_size() + self.usable;
        let poison = if self.usable <= POISONED { POISON } else { 0 };
        // SAFETY: the bytes are usable, and nothing writes to them meanwhile.
        let is_written = |at: &usize| unsafe { self.map.add(*at).read() } != poison;
        let mut outside = (usable.start..self.begin).chain(self.begin + self.n_bytes..usable.end);
        Some(outside.find(is_written)? as isize - self.begin as isize)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: this value mapped the pages, and nothing refers to them any more.
        let unmapped = unsafe { munmap(self.map.cast(), self.map_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
