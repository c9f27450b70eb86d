//! Memory between pages that cannot be touched.
#![expect(unsafe_code, reason = "pages are asked for and looked at as they are")]

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// What fresh memory holds: 127 as i8, 3.4e38 as f32, NaN as f16.
const POISON: u8 = 0x7f;

/// Memory larger than this is not poisoned, so that it takes pages only where it is used.
const POISONED: usize = 64 << 20;

/// The side at which an access beyond the bytes faults at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Right behind a page that cannot be touched.
    Begin,
    /// Right before one, as far as a multiple of this many bytes allows.
    End(usize),
}

/// Bytes between pages that cannot be touched. At one side an access beyond them faults at once; on the other side there may
/// be a gap before the page, whose bytes [`damage`](Self::damage) looks at afterwards.
#[derive(Debug)]
pub struct Guarded {
    map: *mut u8,
    map_bytes: usize,
    usable: usize,
    begin: usize,
    n_bytes: usize,
}

// SAFETY: it is memory that nothing else has.
unsafe impl Send for Guarded {}

impl Guarded {
    /// Poisoned bytes, with `reach` bytes behind them that cannot be touched; None where there is no memory for them.
    pub fn new(n_bytes: usize, side: Side, reach: usize) -> Option<Self> {
        let page = rustix::param::page_size();
        let usable = (n_bytes / page + 1) * page;
        let map_bytes = page + usable + reach;
        // SAFETY: new pages, of which the usable ones can be written.
        let map: *mut u8 = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let map = mmap_anonymous(null_mut(), map_bytes, ProtFlags::empty(), flags).ok()?;
            mprotect(map.byte_add(page), usable, MprotectFlags::READ | MprotectFlags::WRITE).ok()?;
            // Larger memory is left as it comes: zero, and without pages until it is used.
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

    /// Bytes that are not poisoned, so that they take memory where they are touched only.
    pub(crate) fn untouched(n_bytes: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new pages.
        let map = unsafe { mmap_anonymous(null_mut(), n_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }.ok()?;
        Some(Self { map: map.cast(), map_bytes: n_bytes, usable: n_bytes, begin: 0, n_bytes })
    }

    /// Where they begin.
    pub fn pointer(&self) -> *mut u8 {
        self.map.wrapping_add(self.begin)
    }

    /// How many there are.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: they are usable, and borrowed as this is.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.n_bytes) }
    }

    /// Where an address lies from the first byte on, if it is in these pages.
    pub fn offset_of(&self, address: *const c_void) -> Option<isize> {
        let from_map = (address as usize).checked_sub(self.map as usize)?;
        (from_map < self.map_bytes).then(|| from_map as isize - self.begin as isize)
    }

    /// The first byte outside of them that was written.
    pub fn damage(&self) -> Option<isize> {
        let usable = rustix::param::page_size()..rustix::param::page_size() + self.usable;
        let poison = if self.usable <= POISONED { POISON } else { 0 };
        // SAFETY: they are usable, and written by nobody meanwhile.
        let is_written = |at: &usize| unsafe { self.map.add(*at).read() } != poison;
        let mut outside = (usable.start..self.begin).chain(self.begin + self.n_bytes..usable.end);
        Some(outside.find(is_written)? as isize - self.begin as isize)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by this, and nothing points to it any more.
        let unmapped = unsafe { munmap(self.map.cast(), self.map_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
