//! CRC-32 of data that is read in pieces: in any order, from several threads, with overlaps.

use briquette_core::{Error, Result};
use crc32fast::Hasher;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The expected CRC-32 of a range of a file.
///
/// Each byte is hashed once, however often it is read. The sums of adjacent pieces are combined. Once they
/// cover the whole range, the result is compared.
#[derive(Debug)]
pub struct Sum {
    what: String,
    span: Range<u64>,
    expected: u32,
    /// Pieces by their start, with their end and sum. No two are adjacent.
    pieces: Mutex<BTreeMap<u64, (u64, Hasher)>>,
    is_sound: AtomicBool,
}

impl Sum {
    /// Creates the expected CRC-32 of a range of a file. `what` names the range in errors.
    pub fn new(what: String, span: Range<u64>, expected: u32) -> Self {
        Self { what, span, expected, pieces: Mutex::default(), is_sound: AtomicBool::new(false) }
    }

    /// Returns the range in the file.
    pub fn span(&self) -> &Range<u64> {
        &self.span
    }

    /// Returns whether the range was read in part, so that its sum was not verified.
    pub fn is_begun(&self) -> bool {
        !self.is_sound.load(Ordering::Acquire) && !self.pieces().is_empty()
    }

    /// Returns the ranges that were not read yet.
    pub fn gaps(&self) -> Vec<Range<u64>> {
        match self.is_sound.load(Ordering::Acquire) {
            true => Vec::new(),
            false => missing(&self.pieces(), &self.span),
        }
    }

    /// Adds bytes that were read from `start` on.
    ///
    /// # Errors
    /// Input: the whole range was read and its CRC-32 differs.
    pub fn add(&self, start: u64, bytes: &[u8]) -> Result<()> {
        if self.is_sound.load(Ordering::Acquire) {
            return Ok(());
        }
        let range = start..start + bytes.len() as u64;
        let gaps = missing(&self.pieces(), &range);
        for gap in gaps {
            let mut hasher = Hasher::new();
            // Hashing takes most of the time, so it runs without the lock.
            hasher.update(&bytes[(gap.start - start) as usize..(gap.end - start) as usize]);
            let mut pieces = self.pieces();
            // Another thread may have added this piece first.
            if missing(&pieces, &gap) == [gap.clone()] {
                insert(&mut pieces, gap, hasher);
            }
        }
        self.compare()
    }

    /// Compares the sum if the whole range was read.
    ///
    /// # Errors
    /// Input: the CRC-32 differs.
    pub fn compare(&self) -> Result<()> {
        let found = match self.pieces().first_key_value() {
            Some((start, (end, hasher))) if (*start..*end) == self.span => hasher.clone().finalize(),
            _ => return Ok(()),
        };
        if found == self.expected {
            self.is_sound.store(true, Ordering::Release);
            return Ok(());
        }
        Err(differs(&self.what, found, self.expected))
    }

    fn pieces(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, Hasher)>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the CRC-32 of bytes in memory. An expected value of 0 means that the writer did not compute it.
///
/// # Errors
/// Input: the CRC-32 differs. The error names `what`.
pub fn check(what: &str, bytes: &[u8], expected: u32) -> Result<()> {
    match crc32fast::hash(bytes) {
        found if expected != 0 && found != expected => Err(differs(what, found, expected)),
        _ => Ok(()),
    }
}

/// Returns the error for a wrong CRC-32.
pub fn differs(what: &str, found: u32, expected: u32) -> Error {
    Error::input(format!(
        "{what} has the CRC-32 {found:08x}, expected {expected:08x}; the file is damaged, save or download it again"
    ))
}

/// Returns the parts of a range that no piece covers.
fn missing(pieces: &BTreeMap<u64, (u64, Hasher)>, range: &Range<u64>) -> Vec<Range<u64>> {
    let before = pieces.range(..=range.start).next_back().map_or(range.start, |(_, (end, _))| *end);
    let mut at = before.clamp(range.start, range.end);
    let mut gaps = Vec::new();
    for (&start, &(end, _)) in pieces.range(at..range.end) {
        if at < start {
            gaps.push(at..start);
        }
        at = end.min(range.end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

/// Adds a piece and merges it with adjacent pieces.
fn insert(pieces: &mut BTreeMap<u64, (u64, Hasher)>, range: Range<u64>, mut hasher: Hasher) {
    let mut end = range.end;
    if let Some((after, next)) = pieces.remove(&end) {
        hasher.combine(&next);
        end = after;
    }
    match pieces.range_mut(..range.start).next_back() {
        Some((_, (before, sum))) if *before == range.start => {
            sum.combine(&hasher);
            *before = end;
        }
        _ => drop(pieces.insert(range.start, (end, hasher))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 100;

    fn bytes() -> Vec<u8> {
        (0..10_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn sum_of(bytes: &[u8]) -> Sum {
        Sum::new("it".into(), START..START + bytes.len() as u64, crc32fast::hash(bytes))
    }

    fn add(sum: &Sum, bytes: &[u8], range: Range<usize>) -> Result<()> {
        sum.add(START + range.start as u64, &bytes[range])
    }

    #[test]
    fn pieces_in_any_order_with_repeats_give_the_sum() {
        let bytes = bytes();
        let n = bytes.len();
        for size in [1, 7, 100, 999, 10_000] {
            let mut ranges: Vec<Range<usize>> = (0..n).step_by(size).map(|at| at..(at + size).min(n)).collect();
            ranges.sort_by_key(|range| (range.start.wrapping_mul(40_503) >> 3) % 97);
            let wide = ranges.iter().map(|range| range.start.saturating_sub(3)..(range.end + 5).min(n));
            for ranges in [ranges.clone(), wide.collect(), [ranges.as_slice(), &ranges].concat()] {
                let sum = sum_of(&bytes);
                ranges.iter().for_each(|range| add(&sum, &bytes, range.clone()).unwrap());
                assert!(sum.gaps().is_empty() && sum.is_sound.load(Ordering::Acquire), "{size}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_last_piece_and_later_reads() {
        let good = bytes();
        let mut bad = good.clone();
        bad[7777] ^= 4;
        let sum = sum_of(&good);
        assert!(add(&sum, &bad, 5000..10_000).is_ok() && sum.is_begun());
        assert!(sum.gaps().iter().eq([&(START..START + 5000)]));
        for range in [0..5000, 0..5000, 0..10_000] {
            let error = add(&sum, &bad, range).unwrap_err().to_string();
            assert!(error.contains("it has the CRC-32") && error.contains("damaged"), "{error}");
        }
    }

    #[test]
    fn threads_that_read_the_same_agree() {
        let bytes = bytes();
        let sum = sum_of(&bytes);
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (sum, bytes) = (&sum, &bytes);
                scope.spawn(move || {
                    for at in (0..bytes.len()).step_by(64) {
                        let at = if thread % 2 == 0 { at } else { (bytes.len() - 1 - at) / 64 * 64 };
                        add(sum, bytes, at..(at + 64 + thread).min(bytes.len())).unwrap();
                    }
                });
            }
        });
        // Both threads may have skipped a range that overlapped.
        for gap in sum.gaps() {
            add(&sum, &bytes, (gap.start - START) as usize..(gap.end - START) as usize).unwrap();
        }
        assert!(sum.is_sound.load(Ordering::Acquire));
    }
}
