//! The block of codes that a thread read last.

use std::sync::atomic::{AtomicU64, Ordering};

/// A unique number per open directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirNumber(u64);

impl Default for DirNumber {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The block that was read last. Rows are often read a few at a time.
#[derive(Debug, Default)]
pub(super) struct ReadBlock {
    /// Its directory, tensor and number.
    pub(super) of: Option<(DirNumber, usize, usize)>,
    pub(super) codes: Vec<i8>,
    pub(super) coded: Vec<u8>,
    pub(super) ends: Vec<u8>,
}
