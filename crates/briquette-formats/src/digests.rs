//! Compares the tensors of a directory written by Briquette with their hashes while they are read.
//!
//! The first reader of a block hashes it. Once all blocks of a tensor were read, their hash is compared with
//! the manifest.
//!
//! Blocks may arrive in any order and from several threads. A block that arrives in parts is hashed if the
//! parts are in order. Otherwise [`StoredDir::check_hashes`](crate::StoredDir::check_hashes) reads it again at
//! the end.

use briquette_core::{BlockHasher, Hash128, OutputAxis, Shape, TensorHasher};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The digests of the tensors of a directory, as far as they were read.
#[derive(Debug)]
pub(crate) struct Digests {
    /// The hashes in the manifest, in the order of the tensors.
    expected: Vec<Hash128>,
    /// Layouts of the tensors whose hash includes the layout.
    layouts: BTreeMap<usize, (Shape, OutputAxis)>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Tensors that were read in part.
    begun: BTreeMap<usize, SeenBlocks>,
    /// Tensors whose hash matches.
    sound: BTreeSet<usize>,
}

/// The blocks of one tensor.
#[derive(Debug, Default)]
struct SeenBlocks {
    digests: Vec<Option<Hash128>>,
    n_known: usize,
    /// A block of which only the start was read: its number, the bytes read, and the hash so far.
    open: Option<(usize, usize, BlockHasher)>,
}

/// How the values of a tensor are divided into blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Bytes of each block except the last.
    pub(crate) block: usize,
    /// Bytes of all blocks.
    pub(crate) total: usize,
}

impl Digests {
    /// Creates the digests of a directory from the hashes of its manifest.
    ///
    /// `layouts` has the tensors whose hash includes the layout.
    pub(crate) fn new(expected: Vec<Hash128>, layouts: BTreeMap<usize, (Shape, OutputAxis)>) -> Self {
        Self { expected, layouts, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the expected hash of a tensor.
    pub(crate) fn expected(&self, index: usize) -> Option<Hash128> {
        self.expected.get(index).copied()
    }

    /// Returns the hash that the manifest has for a tensor, from the hash `by_rows` of its values row by row.
    pub(crate) fn hash_of(&self, index: usize, by_rows: Hash128) -> Hash128 {
        self.layouts.get(&index).map_or(by_rows, |(shape, axis)| by_rows.with_layout(shape, *axis))
    }

    /// Returns the tensors that were read in part, and the numbers of their blocks that were not read.
    pub(crate) fn begun(&self) -> Vec<(usize, Vec<usize>)> {
        self.seen().begun.iter().map(|(index, blocks)| (*index, blocks.unknown())).collect()
    }

    /// Returns whether all of a tensor was read and its hash matches.
    pub(crate) fn is_sound(&self, index: usize) -> bool {
        self.seen().sound.contains(&index)
    }

    /// Adds values of a tensor.
    ///
    /// Returns the hash of the values as an error if all values were read and the hash does not match.
    pub(crate) fn add(&self, index: usize, lengths: Lengths, start: usize, values: &[u8]) -> Result<(), Hash128> {
        if self.is_sound(index) {
            return Ok(());
        }
        let (mut at, mut rest) = (start, values);
        while !rest.is_empty() {
            let number = at / lengths.block;
            let block = number * lengths.block..((number + 1) * lengths.block).min(lengths.total);
            let (piece, later) = rest.split_at((block.end - at).min(rest.len()));
            if piece.len() == block.len() {
                self.add_block(index, lengths, number, piece);
            } else {
                self.seen().blocks(index, lengths).extend(number, at - block.start, block.len(), piece);
            }
            (at, rest) = (at + piece.len(), later);
        }
        self.compare(index, lengths)
    }

    fn add_block(&self, index: usize, lengths: Lengths, number: usize, values: &[u8]) {
        if self.seen().blocks(index, lengths).has(number) {
            return;
        }
        // Hashing takes most of the time, so it runs without the lock.
        let mut hasher = BlockHasher::default();
        hasher.push(values);
        self.put(index, lengths, number, hasher.take());
    }

    /// Records that a tensor was read in part.
    pub(crate) fn begin(&self, index: usize, lengths: Lengths) {
        self.seen().blocks(index, lengths);
    }

    /// Adds the digest of a block of a tensor.
    pub(crate) fn put(&self, index: usize, lengths: Lengths, number: usize, digest: Hash128) {
        self.seen().blocks(index, lengths).put(number, digest);
    }

    /// Compares the hash of a tensor if all its blocks were read. The error is the hash that was found.
    pub(crate) fn compare(&self, index: usize, lengths: Lengths) -> Result<(), Hash128> {
        let mut seen = self.seen();
        let blocks = seen.blocks(index, lengths);
        if blocks.n_known < blocks.digests.len() {
            return Ok(());
        }
        let mut hasher = TensorHasher::default();
        blocks.digests.iter().flatten().for_each(|digest| hasher.push(*digest));
        let found = self.hash_of(index, hasher.finish());
        if self.expected.get(index) != Some(&found) {
            return Err(found);
        }
        seen.begun.remove(&index);
        seen.sound.insert(index);
        Ok(())
    }
}

impl Seen {
    /// Returns the blocks of a tensor. If another thread finished the tensor meanwhile, it is begun again,
    /// which is harmless.
    fn blocks(&mut self, index: usize, lengths: Lengths) -> &mut SeenBlocks {
        let new = || SeenBlocks { digests: vec![None; lengths.total.div_ceil(lengths.block)], ..SeenBlocks::default() };
        self.begun.entry(index).or_insert_with(new)
    }
}

impl SeenBlocks {
    fn has(&self, number: usize) -> bool {
        self.digests.get(number).is_some_and(Option::is_some)
    }

    fn unknown(&self) -> Vec<usize> {
        (0..self.digests.len()).filter(|&number| !self.has(number)).collect()
    }

    fn put(&mut self, number: usize, digest: Hash128) {
        if let Some(place) = self.digests.get_mut(number).filter(|place| place.is_none()) {
            *place = Some(digest);
            self.n_known += 1;
        }
    }

    /// Adds a part of a block of `length` bytes that starts at byte `from`: the first part or the next one.
    fn extend(&mut self, number: usize, from: usize, length: usize, values: &[u8]) {
        if self.has(number) {
            return;
        }
        if from == 0 {
            self.open = Some((number, 0, BlockHasher::default()));
        }
        let Some((_, n, hasher)) = self.open.as_mut().filter(|(open, n, _)| (*open, *n) == (number, from)) else {
            return;
        };
        hasher.push(values);
        *n += values.len();
        if *n == length {
            let digest = hasher.take();
            self.open = None;
            self.put(number, digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    const BLOCK: usize = 1000;

    fn values() -> Vec<u8> {
        (0..10_500_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn lengths(values: &[u8]) -> Lengths {
        Lengths { block: BLOCK, total: values.len() }
    }

    fn digests_of(values: &[u8]) -> Digests {
        let mut hasher = TensorHasher::default();
        values.chunks(BLOCK).for_each(|block| hasher.push(Hash128::of_block(block)));
        Digests::new(vec![hasher.finish()], BTreeMap::new())
    }

    /// Adds the values range by range. Returns whether the hash matches, and the first hash that did not.
    fn add_all(digests: &Digests, values: &[u8], ranges: &[Range<usize>]) -> (bool, Option<Hash128>) {
        let add = |range: &Range<usize>| digests.add(0, lengths(values), range.start, &values[range.clone()]).err();
        let found = ranges.iter().filter_map(add).next();
        (digests.is_sound(0), found)
    }

    #[test]
    fn blocks_in_any_order_and_parts_in_order_give_the_hash() {
        let values = values();
        let n = values.len();
        for size in [1, 7, 999, 1000, 1001, 3000, 10_500] {
            let mut ranges: Vec<Range<usize>> = (0..n).step_by(size).map(|at| at..(at + size).min(n)).collect();
            assert_eq!(add_all(&digests_of(&values), &values, &ranges), (true, None), "{size}");
            if size % BLOCK == 0 {
                ranges.reverse();
                let twice = [ranges.as_slice(), &ranges].concat();
                assert_eq!(add_all(&digests_of(&values), &values, &twice), (true, None), "{size}");
            }
        }
    }

    #[test]
    fn the_last_piece_finds_a_flipped_bit() {
        let good = values();
        for at in [0, 999, 1000, 5432, 10_499] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            for size in [100, 1000, 1500] {
                let ranges: Vec<Range<usize>> =
                    (0..bad.len()).step_by(size).map(|at| at..(at + size).min(bad.len())).collect();
                let (is_sound, found) = add_all(&digests_of(&good), &bad, &ranges);
                assert!(!is_sound && found.is_some(), "{at} by {size}");
            }
        }
    }

    #[test]
    fn parts_out_of_order_are_missing_blocks() {
        let values = values();
        let digests = digests_of(&values);
        let ranges = [500..1500, 0..500, 3000..3100, 4000..4200, 3100..4000, 5000..10_500];
        assert_eq!(add_all(&digests, &values, &ranges), (false, None));
        let unknown = digests.seen().begun[&0].unknown();
        assert_eq!(unknown, [0, 1, 2, 3, 4]);
        let missing = 0..5 * BLOCK;
        assert_eq!(add_all(&digests, &values, &[missing]), (true, None));
    }
}
