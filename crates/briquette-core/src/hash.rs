//! The 128-bit hash of a tensor's values, combined from the hashes of blocks.
//!
//! Threads can hash blocks in parallel with the same result.

mod strips;

use crate::{OutputAxis, Shape};
use serde::de::Visitor;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

pub use strips::BlockHasher;

/// A 128-bit hash, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash128(pub u128);

impl Hash128 {
    /// Returns xxh3 (128 bits, seed 0) of one block of bytes.
    pub fn of_block(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }

    /// Combines the hash of values in row order with the layout of the rows in the tensor.
    ///
    /// The result is `xxh3(self ‖ axis ‖ extents)` if rows are [turned](OutputAxis::is_turned): one byte for
    /// the axis (1 = last, 2 = second), then the extents as 64-bit numbers, all little-endian. For rows in the
    /// tensor's own order, it is `self`.
    pub fn with_layout(self, shape: &Shape, axis: OutputAxis) -> Self {
        let number = match axis {
            OutputAxis::First | OutputAxis::Stacked => return self,
            OutputAxis::Last => 1,
            OutputAxis::Second => 2,
        };
        let mut bytes = self.0.to_le_bytes().to_vec();
        bytes.push(number);
        bytes.extend(shape.0.iter().flat_map(|&extent| (extent as u64).to_le_bytes()));
        Self::of_block(&bytes)
    }

    /// Returns the hexadecimal digits for [`Display`](std::fmt::Display).
    fn to_digits(self) -> [u8; 32] {
        std::array::from_fn(|place| b"0123456789abcdef"[(self.0 >> (124 - 4 * place)) as usize & 0xf])
    }
}

impl std::fmt::Display for Hash128 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Hash128 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.to_digits()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Hash128 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Hash128;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Hash128, E> {
                let of = |value: u128, digit: char| Some(value << 4 | u128::from(digit.to_digit(16)?));
                match text.chars().try_fold(0, of) {
                    Some(value) if text.len() == 32 => Ok(Hash128(value)),
                    _ => Err(E::custom(format!("found hash {text:?}, expected 32 hexadecimal digits"))),
                }
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

/// Hash of a tensor: `xxh3(xxh3(block 0) ‖ xxh3(block 1) ‖ …)`, digests little-endian.
///
/// The blocks are those of [`Rows::blocks`](crate::Rows::blocks) over the tensor's values in row order, so that
/// threads can hash them in parallel.
#[derive(Debug, Default)]
pub struct TensorHasher {
    digests: Vec<u8>,
}

impl TensorHasher {
    /// Adds the next block's digest.
    pub fn push(&mut self, block: Hash128) {
        self.digests.extend_from_slice(&block.0.to_le_bytes());
    }

    /// Returns the hash of all blocks so far.
    pub fn finish(&self) -> Hash128 {
        Hash128::of_block(&self.digests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_reads_back_from_json_and_nothing_else_does() {
        let hash = Hash128(0x0123_4567_89ab_cdef_u128);
        let text = serde_json::to_string(&hash).unwrap();
        assert_eq!(text, format!("\"{hash}\""));
        assert_eq!(serde_json::from_str::<Hash128>(&text).unwrap(), hash);
        for bad in ["\"\"", "\"12\"", "\"+123456789012345678901234567890ab\"", "12"] {
            assert!(serde_json::from_str::<Hash128>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_turned_rows_hash_with_their_layout() {
        let (hash, square) = (Hash128::of_block(b"values"), Shape(vec![4, 4]));
        assert_eq!(hash.with_layout(&square, OutputAxis::First), hash);
        assert_eq!(hash.with_layout(&Shape(vec![2, 2, 4]), OutputAxis::Stacked), hash);
        let last = hash.with_layout(&square, OutputAxis::Last);
        let others =
            [(vec![2, 8], OutputAxis::Last), (vec![8, 2], OutputAxis::Last), (vec![4, 4, 1], OutputAxis::Second)];
        assert_ne!(last, hash);
        for (shape, axis) in others {
            assert_ne!(hash.with_layout(&Shape(shape), axis), last);
        }
        assert_eq!(last, hash.with_layout(&square, OutputAxis::Last));
    }

    #[test]
    fn xxh3_of_empty_input_is_the_published_value() {
        assert_eq!(Hash128::of_block(b"").to_string(), "99aa06d3014798d86001c324468d497f");
    }
}
