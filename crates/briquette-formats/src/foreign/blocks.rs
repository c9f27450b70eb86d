//! Parts that are interleaved in blocks: each block has some bytes of every part.

use briquette_core::{Error, Result};

/// The location of the bytes of one part within the blocks of a tensor.
///
/// Bytes `i * n_bytes .. (i + 1) * n_bytes` of the part are bytes `at .. at + n_bytes` of block `i`, in the
/// order of a [`BlockOrder`]. Blocks follow each other without gaps. A row is one or more whole blocks. In a
/// matrix of `n` blocks per row, row `r` starts at byte `r * n * block_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// There may be one for each part of millions of tensors, so it must not be larger than other layouts.
#[repr(C, packed(4))]
pub struct BlockLayout {
    block_bytes: u32,
    at: u32,
    n_bytes: u32,
    order: Option<&'static BlockOrder>,
}

/// The order of the bytes of a part within a block, if it is not Briquette's.
///
/// Both functions get the bytes of the part in one block, and each reverts the other.
#[derive(Debug)]
pub struct BlockOrder {
    /// Fills the second slice in the order of the block from the first in the order of the part.
    pub weave: fn(&[u8], &mut [u8]),
    /// Fills the second slice in the order of the part from the first in the order of the block.
    pub unweave: fn(&[u8], &mut [u8]),
}

impl PartialEq for BlockOrder {
    /// Functions cannot be compared, so an order equals only itself.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for BlockOrder {}

impl BlockLayout {
    /// Returns the layout of blocks of `block_bytes` bytes with `n_bytes` of the part at byte `at`.
    ///
    /// The bytes are in Briquette's order. `None` if a block would have 4 GiB or more.
    ///
    /// # Panics
    /// If the bytes of the part are not within a block.
    pub fn new(block_bytes: usize, at: usize, n_bytes: usize) -> Option<Self> {
        assert!(at.checked_add(n_bytes).is_some_and(|end| end <= block_bytes), "the part is within its block");
        let short = |n: usize| u32::try_from(n).ok();
        Some(Self { block_bytes: short(block_bytes)?, at: short(at)?, n_bytes: short(n_bytes)?, order: None })
    }

    /// Returns this layout with another order of bytes.
    pub fn in_order(self, order: &'static BlockOrder) -> Self {
        Self { order: Some(order), ..self }
    }

    /// Returns the start of the block that has byte `offset` of the part.
    pub fn start_of(&self, offset: u64) -> u64 {
        offset / u64::from(self.n_bytes.max(1)) * u64::from(self.block_bytes)
    }

    /// Returns the number of bytes of the part per block.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes as usize
    }

    /// Returns the size of a block in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    /// Copies the bytes of the part into blocks.
    fn put(&self, part: &[u8], blocks: &mut [u8]) {
        let (at, n_bytes) = (self.at as usize, self.n_bytes());
        let places = blocks.chunks_exact_mut(self.block_bytes().max(1)).map(|block| &mut block[at..at + n_bytes]);
        for (bytes, place) in part.chunks_exact(n_bytes.max(1)).zip(places) {
            match self.order {
                Some(order) => (order.weave)(bytes, place),
                None => place.copy_from_slice(bytes),
            }
        }
    }

    /// Appends the bytes of the part in `blocks`, which must be whole blocks.
    pub(super) fn take(&self, blocks: &[u8], part: &mut Vec<u8>) {
        let (at, n_bytes, before) = (self.at as usize, self.n_bytes(), part.len());
        part.resize(before + blocks.len() / self.block_bytes().max(1) * n_bytes, 0);
        let places = blocks.chunks_exact(self.block_bytes().max(1)).map(|block| &block[at..at + n_bytes]);
        for (bytes, place) in part[before..].chunks_exact_mut(n_bytes.max(1)).zip(places) {
            match self.order {
                Some(order) => (order.unweave)(place, bytes),
                None => bytes.copy_from_slice(place),
            }
        }
    }
}

/// Interleaves the parts of the same rows into blocks.
///
/// For each part, `block[i][at .. at + n_bytes] = part[i * n_bytes .. (i + 1) * n_bytes]`. Bytes without a part
/// are 0. [`ForeignLayout`](super::ForeignLayout) reads the parts back.
///
/// # Errors
/// Bug: the blocks differ in size, or the parts in their number of blocks.
pub fn weave(parts: &[(BlockLayout, &[u8])]) -> Result<Vec<u8>> {
    let Some((first, _)) = parts.first() else { return Ok(Vec::new()) };
    let filled = || parts.iter().filter(|(blocks, _)| blocks.n_bytes > 0);
    let n_blocks = filled().next().map_or(0, |(blocks, bytes)| bytes.len() / blocks.n_bytes());
    let is_same = |(blocks, bytes): &(BlockLayout, &[u8])| {
        blocks.block_bytes == first.block_bytes && bytes.len() == n_blocks * blocks.n_bytes()
    };
    if !parts.iter().all(is_same) {
        let found: Vec<usize> = parts.iter().map(|(_, bytes)| bytes.len()).collect();
        return Err(Error::bug(format!("parts of {found:?} bytes do not have the same number of blocks")));
    }
    let mut woven = vec![0; n_blocks * first.block_bytes()];
    parts.iter().for_each(|(blocks, bytes)| blocks.put(bytes, &mut woven));
    Ok(woven)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_parts_read_back() {
        static REVERSED: BlockOrder = BlockOrder { weave: reverse, unweave: reverse };
        fn reverse(from: &[u8], to: &mut [u8]) {
            to.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
        }
        for n_blocks in [0, 1, 2, 33] {
            for (a, b, gap) in [(1, 1, 0), (2, 32, 0), (4, 3, 5), (2, 0, 0)] {
                let bytes: Vec<u8> = (0..n_blocks * (a + b)).map(|i| (i * 37) as u8 | 1).collect();
                let (one, other) = bytes.split_at(n_blocks * a);
                let scales = BlockLayout::new(a + b + gap, 0, a).unwrap();
                let codes = BlockLayout::new(a + b + gap, a + gap, b).unwrap().in_order(&REVERSED);
                let woven = weave(&[(scales, one), (codes, other)]).unwrap();
                assert_eq!(woven.len(), n_blocks * (a + b + gap));
                assert_eq!(woven.iter().filter(|&&byte| byte == 0).count(), n_blocks * gap);
                let (mut first, mut second) = (vec![9], Vec::new());
                scales.take(&woven, &mut first);
                codes.take(&woven, &mut second);
                assert_eq!((&first[1..], second.as_slice()), (one, other), "{n_blocks} {a} {b} {gap}");
                assert!(b == 0 || codes.start_of((n_blocks * b) as u64) == woven.len() as u64);
            }
        }
    }

    #[test]
    fn parts_with_different_numbers_of_blocks_are_a_bug() {
        let (scale, codes) = (BlockLayout::new(6, 0, 2).unwrap(), BlockLayout::new(6, 2, 4).unwrap());
        assert!(weave(&[(scale, &[0; 4]), (codes, &[0; 8])]).is_ok());
        assert!(weave(&[(scale, &[0; 4]), (codes, &[0; 12])]).is_err());
        assert!(weave(&[(scale, &[0; 3]), (codes, &[0; 4])]).is_err());
        assert!(weave(&[(scale, &[0; 2]), (BlockLayout::new(8, 2, 4).unwrap(), &[0; 4])]).is_err());
        assert!(weave(&[]).unwrap().is_empty());
    }

    #[test]
    #[should_panic = "within its block"]
    fn a_part_beyond_its_block_panics() {
        let _ = BlockLayout::new(6, 3, 4);
    }
}
