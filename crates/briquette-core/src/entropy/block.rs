//! A block of codes as files have it: its own table, then what that coded; or the codes packed, where that is no longer.

use crate::entropy::{BlockDecoder, SymbolTable, encode};
use crate::{Error, Result, bits};

/// Appends a block of codes of `n_bits` each: their table and what it codes them to, or, where that would not be shorter, the codes
/// [packed](bits::pack). A reader tells them apart by their length.
///
/// # Panics
/// If a code is not of that many bits.
pub fn write_block(codes: &[i8], n_bits: u8, block: &mut Vec<u8>) {
    let (start, n_packed) = (block.len(), bits::packed_bytes(codes.len(), n_bits));
    let symbols: &[u8] = bytemuck::cast_slice(codes);
    let table = SymbolTable::of_counts(&counts_of(symbols));
    table.write(block);
    encode(symbols, &table, block);
    if block.len() - start >= n_packed {
        block.truncate(start);
        bits::pack(codes, n_bits, block);
    }
}

/// Fills `codes` with those of a block, all of them.
///
/// # Errors
/// Input where the block is not one of this many codes.
pub fn read_block(block: &[u8], n_bits: u8, codes: &mut [i8]) -> Result<()> {
    let n_packed = bits::packed_bytes(codes.len(), n_bits);
    if block.len() == n_packed {
        bits::unpack(block, 0, n_bits, codes);
        return Ok(());
    }
    if block.len() > n_packed {
        let message =
            format!("a block of codes has {} bytes, expected at most {n_packed}; the file is damaged", block.len());
        return Err(Error::input(message));
    }
    let (table, n) = SymbolTable::read(block)?;
    if !table.fits(n_bits) {
        return Err(Error::input(format!("a block of codes has some of more than {n_bits} bits; the file is damaged")));
    }
    BlockDecoder::new(&table).decode(&block[n..], bytemuck::cast_slice_mut(codes))
}

/// How often each byte comes.
pub fn counts_of(symbols: &[u8]) -> [u64; 256] {
    // Four at a time: one byte after the other would wait for the count of one that is the same.
    let mut counts = [[0_u32; 256]; 4];
    let (fours, rest) = symbols.as_chunks::<4>();
    for four in fours {
        counts.iter_mut().zip(four).for_each(|(counts, &symbol)| counts[usize::from(symbol)] += 1);
    }
    let mut total: [u64; 256] =
        std::array::from_fn(|symbol| counts.iter().map(|counts| u64::from(counts[symbol])).sum());
    rest.iter().for_each(|&symbol| total[usize::from(symbol)] += 1);
    total
}
