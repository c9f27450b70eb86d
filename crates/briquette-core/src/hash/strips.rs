//! xxh3 of bytes that arrive in strips, so that each strip is hashed while it is in the fastest cache.
//!
//! With AVX-512, the library's streaming interface hashes half as many bytes per second. Values are hashed
//! twice (when written and when read back), four bytes per weight. The library hashes short inputs and finishes
//! each hash; only the long loop is here. Source: the XXH3 specification,
//! <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.

use super::Hash128;
use crate::simd;

/// Bytes after which the accumulators are scrambled.
const BLOCK: usize = simd::XXH3_BLOCK;
/// Bytes added to the accumulators in one step.
const STRIPE: usize = 64;
/// The largest input that is hashed by the algorithm for short inputs.
const MAX_SHORT: usize = 240;

const PRIME32: [u64; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
const PRIME64: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
const START: [u64; 8] =
    [PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2], PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0]];

/// Hashes a block that arrives in strips of any length.
#[derive(Debug)]
pub struct BlockHasher {
    accumulators: [u64; 8],
    /// The last stripe that was added to the accumulators; the final stripe may start within it.
    before: [u8; STRIPE],
    /// Bytes not yet added to the accumulators; at least one, because the end is hashed differently.
    tail: Vec<u8>,
    n_bytes: u64,
}

impl Default for BlockHasher {
    fn default() -> Self {
        Self { accumulators: START, before: [0; STRIPE], tail: Vec::with_capacity(BLOCK), n_bytes: 0 }
    }
}

impl BlockHasher {
    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.n_bytes += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(BLOCK - self.tail.len()));
        if rest.is_empty() {
            return self.tail.extend_from_slice(first);
        }
        if self.tail.is_empty() {
            return self.push_whole(bytes);
        }
        self.tail.extend_from_slice(first);
        let mut tail = std::mem::take(&mut self.tail);
        self.add(&tail);
        tail.clear();
        self.tail = tail;
        self.push_whole(rest);
    }

    /// Adds non-empty `bytes` while `tail` is empty.
    fn push_whole(&mut self, bytes: &[u8]) {
        let (whole, tail) = bytes.split_at((bytes.len() - 1) / BLOCK * BLOCK);
        self.add(whole);
        self.tail.extend_from_slice(tail);
    }

    fn add(&mut self, blocks: &[u8]) {
        simd::xxh3_blocks(&mut self.accumulators, blocks, &SECRET);
        if let Some(last) = blocks.last_chunk() {
            self.before = *last;
        }
    }

    /// Returns the hash of all bytes since the last call, equal to [`Hash128::of_block`].
    pub fn take(&mut self) -> Hash128 {
        let hash = if self.n_bytes <= MAX_SHORT as u64 { Hash128::of_block(&self.tail) } else { self.finish() };
        (self.accumulators, self.n_bytes) = (START, 0);
        self.tail.clear();
        hash
    }

    fn finish(&mut self) -> Hash128 {
        let stripes = &self.tail[..(self.tail.len() - 1) / STRIPE * STRIPE];
        for (i, stripe) in stripes.as_chunks::<STRIPE>().0.iter().enumerate() {
            simd::scalar::xxh3_stripe(&mut self.accumulators, stripe, &SECRET[8 * i..]);
        }
        // The final stripe is the last 64 bytes of all input, even if the tail is shorter.
        let (n, mut last) = (self.tail.len().min(STRIPE), [0; STRIPE]);
        last[..STRIPE - n].copy_from_slice(&self.before[n..]);
        last[STRIPE - n..].copy_from_slice(&self.tail[self.tail.len() - n..]);
        simd::scalar::xxh3_stripe(&mut self.accumulators, &last, &SECRET[SECRET.len() - STRIPE - 7..]);
        let low = self.merge(self.n_bytes.wrapping_mul(PRIME64[0]), &SECRET[11..]);
        let high = self.merge(!self.n_bytes.wrapping_mul(PRIME64[1]), &SECRET[SECRET.len() - STRIPE - 11..]);
        Hash128(u128::from(high) << 64 | u128::from(low))
    }

    fn merge(&self, start: u64, secret: &[u8]) -> u64 {
        let pairs = self.accumulators.as_chunks::<2>().0.iter().zip(secret.as_chunks::<16>().0);
        let sum = pairs.fold(start, |sum, ([a, b], secret)| {
            let secret = u128::from_le_bytes(*secret);
            let product = u128::from(a ^ secret as u64) * u128::from(b ^ (secret >> 64) as u64);
            sum.wrapping_add(product as u64 ^ (product >> 64) as u64)
        });
        let mixed = (sum ^ sum >> 37).wrapping_mul(0x1656_6791_9e37_79f9);
        mixed ^ mixed >> 32
    }
}

/// The default secret of the XXH3 specification.
const SECRET: [u8; simd::XXH3_SECRET] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
    0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
    0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
    0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
    0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
    0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
    0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
    0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
    0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
    0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
    0x40, 0x7e,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_hash_like_the_whole_block() {
        let bytes: Vec<u8> = (0..9000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut hasher = BlockHasher::default();
        for n in [0, 1, 63, 64, 240, 241, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 5000, 8192, 9000] {
            for strip in [1, 7, 64, 1000, 1024, 1025, 2048, 4096, 9000] {
                bytes[..n].chunks(strip).for_each(|strip| hasher.push(strip));
                hasher.push(&[]);
                assert_eq!(hasher.take(), Hash128::of_block(&bytes[..n]), "{n} bytes by {strip}");
            }
        }
    }
}
