//! Bits in bytes, lowest bit first: bitmasks and codes narrower than a byte.

/// Returns bit `index` of a bitmask.
pub fn get(bits: &[u8], index: usize) -> bool {
    bits[index / 8] >> (index % 8) & 1 == 1
}

/// Returns the number of set bits.
pub fn count_ones(bits: &[u8]) -> usize {
    let (words, rest) = bits.as_chunks::<8>();
    let whole: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
    whole as usize + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
}

/// Returns the number of bytes that `n` codes of `n_bits` take.
pub const fn packed_bytes(n: usize, n_bits: u8) -> usize {
    (n * n_bits as usize).div_ceil(8)
}

/// Packs codes as `u = code + 2^(b-1)`: code `i` starts at bit `i * b` of a stream, low bit first.
///
/// A packer keeps the bits that do not fill a byte for the next call, so a stream can be written in pieces.
#[derive(Debug, Default)]
pub struct BitPacker {
    pending: u32,
    n_pending: u32,
}

impl BitPacker {
    /// Appends codes to `out`. Bits that do not fill a byte stay in the packer.
    pub fn push(&mut self, codes: &[i8], n_bits: u8, out: &mut Vec<u8>) {
        let (offset, width) = (1_i16 << (n_bits - 1), u32::from(n_bits));
        for &code in codes {
            self.pending |= ((i16::from(code) + offset) as u32) << self.n_pending;
            self.n_pending += width;
            while self.n_pending >= 8 {
                out.push(self.pending as u8);
                self.pending >>= 8;
                self.n_pending -= 8;
            }
        }
    }

    /// Appends the last, partly filled byte.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.n_pending > 0 {
            out.push(self.pending as u8);
        }
        *self = Self::default();
    }
}

/// Packs one row of codes into whole bytes.
pub fn pack(codes: &[i8], n_bits: u8, out: &mut Vec<u8>) {
    let mut packer = BitPacker::default();
    packer.push(codes, n_bits, out);
    packer.finish(out);
}

/// Reads `codes.len()` codes that start at bit `first * n_bits` of `packed`.
///
/// # Panics
/// If `packed` is too short.
pub fn unpack(packed: &[u8], first: usize, n_bits: u8, codes: &mut [i8]) {
    let (offset, width, mask) = (1_i16 << (n_bits - 1), usize::from(n_bits), (1_u16 << n_bits) - 1);
    for (i, code) in codes.iter_mut().enumerate() {
        let bit = (first + i) * width;
        let low = u16::from(packed[bit / 8]);
        let high = if bit % 8 + width > 8 { u16::from(packed[bit / 8 + 1]) } else { 0 };
        let value = (low | high << 8) >> (bit % 8) & mask;
        *code = (value as i16 - offset) as i8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_codes_unpack_from_any_position() {
        for n_bits in 2..=8_u8 {
            let half = 1_i32 << (n_bits - 1);
            let codes: Vec<i8> = (0..133).map(|i| ((i * 7) % (2 * half) - half) as i8).collect();
            let mut packed = Vec::new();
            pack(&codes, n_bits, &mut packed);
            assert_eq!(packed.len(), packed_bytes(codes.len(), n_bits));
            for first in [0, 1, 5, 132, 133] {
                let mut back = vec![0; codes.len() - first];
                unpack(&packed, first, n_bits, &mut back);
                assert_eq!(back, codes[first..], "{n_bits} bits from {first}");
            }
        }
    }

    #[test]
    fn a_stream_written_in_pieces_equals_one_written_whole() {
        let codes: Vec<i8> = (0..50).map(|i| (i % 7) - 3).collect();
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        pack(&codes, 3, &mut whole);
        let mut packer = BitPacker::default();
        for piece in codes.chunks(7) {
            packer.push(piece, 3, &mut pieces);
        }
        packer.finish(&mut pieces);
        assert_eq!(pieces, whole);
    }

    #[test]
    fn four_bit_codes_lie_low_nibble_first() {
        let mut packed = Vec::new();
        pack(&[-8, 7, 0], 4, &mut packed);
        assert_eq!(packed, [0xf0, 0x08]);
    }
}
