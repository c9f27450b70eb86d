//! Entropy-coded blocks as stored in files.
//!
//! A block holds its symbol table and the coded symbols, or the packed codes if these are not longer.

use crate::entropy::{BlockDecoder, SymbolTable, encode};
use crate::{Error, Result, bits};

/// Appends a block of codes of `n_bits` each.
///
/// The block holds the symbol table and the coded symbols, or the [packed](bits::pack) codes if these are not
/// longer. A reader tells the two apart by the length of the block.
///
/// # Panics
/// If a code does not fit in `n_bits`.
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

/// Fills `codes` with all codes of a block.
///
/// # Errors
/// Input: the block does not hold exactly this number of codes.
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
        return Err(Error::input(format!(
            "a block of codes has codes of more than {n_bits} bits; the file is damaged"
        )));
    }
    BlockDecoder::new(&table).decode(&block[n..], bytemuck::cast_slice_mut(codes))
}

/// Counts how often each byte occurs.
pub fn counts_of(symbols: &[u8]) -> [u64; 256] {
    // Four separate counters: with one, equal neighbouring bytes would wait for each other's update.
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
