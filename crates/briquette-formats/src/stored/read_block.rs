//! The block of codes that a thread read last.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other directory of this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirNumber(u64);

impl Default for DirNumber {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The block that was read last: rows are often asked for a few at a time.
#[derive(Debug, Default)]
pub(super) struct ReadBlock {
    /// Its directory, tensor and place.
    pub(super) of: Option<(DirNumber, usize, usize)>,
    pub(super) codes: Vec<i8>,
    pub(super) coded: Vec<u8>,
    pub(super) ends: Vec<u8>,
}
