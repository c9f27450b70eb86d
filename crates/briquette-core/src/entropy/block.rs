//! Entropy-coded blocks as stored in files.
//!
//! A block holds its symbol table and the coded symbols, or the packed codes if these are not longer.

use super::encode::encode_trellis;
use super::trellis;
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
    check_length(block, n_packed)?;
    let (table, n) = read_table(block, n_bits)?;
    BlockDecoder::new(&table).decode(&block[n..], bytemuck::cast_slice_mut(codes))
}

/// The first byte of a block in a tensor with a trellis: how many tables follow.
const ONE_TABLE: u8 = 1;
const TWO_TABLES: u8 = 2;

/// Appends a block of 8-bit codes of a tensor with rows of `n_cols` codes on a trellis.
///
/// The block holds the number 2, the tables of even and of odd codes, and the coded codes. If the codes do not
/// [follow](trellis::follows) the trellis, it holds the number 1 and what [`write_block`] writes. It holds the codes
/// themselves if they are not longer.
pub fn write_trellis_block(codes: &[i8], n_cols: usize, block: &mut Vec<u8>) {
    let start = block.len();
    let counts = counts_of(bytemuck::cast_slice(codes));
    if trellis::follows(codes, n_cols) {
        block.push(TWO_TABLES);
        let tables = trellis::tables(&counts);
        tables.iter().for_each(|table| table.write(block));
        encode_trellis(codes, &tables, block);
    } else {
        block.push(ONE_TABLE);
        let table = SymbolTable::of_counts(&counts);
        table.write(block);
        encode(bytemuck::cast_slice(codes), &table, block);
    }
    if block.len() - start >= codes.len() {
        block.truncate(start);
        bits::pack(codes, 8, block);
    }
}

/// Fills `codes` with all codes of a block of a tensor with rows of `n_cols` codes on a trellis.
///
/// # Errors
/// Input: the block does not hold exactly this number of codes.
pub fn read_trellis_block(block: &[u8], n_cols: usize, codes: &mut [i8]) -> Result<()> {
    if block.len() == codes.len() {
        bits::unpack(block, 0, 8, codes);
        return Ok(());
    }
    check_length(block, codes.len())?;
    match block.split_first() {
        Some((&ONE_TABLE, rest)) => {
            let (table, n) = read_table(rest, 8)?;
            BlockDecoder::new(&table).decode(&rest[n..], bytemuck::cast_slice_mut(codes))
        }
        Some((&TWO_TABLES, rest)) if trellis::can_have_trellis(n_cols) => {
            // A pair of codes has one bit less than a code.
            let (even, n_even) = read_table(rest, 7)?;
            let (odd, n_odd) = read_table(&rest[n_even..], 7)?;
            let decoder = BlockDecoder::of_trellis(&[even, odd], n_cols);
            decoder.decode(&rest[n_even + n_odd..], bytemuck::cast_slice_mut(codes))
        }
        _ => {
            let found = block.first().map_or("nothing".to_string(), u8::to_string);
            Err(Error::input(format!("a block of codes begins with {found}, expected 1 or 2; the file is damaged")))
        }
    }
}

fn check_length(block: &[u8], n_packed: usize) -> Result<()> {
    if block.len() > n_packed {
        let message =
            format!("a block of codes has {} bytes, expected at most {n_packed}; the file is damaged", block.len());
        return Err(Error::input(message));
    }
    Ok(())
}

/// Reads the table of a block, of symbols with `n_bits`.
fn read_table(block: &[u8], n_bits: u8) -> Result<(SymbolTable, usize)> {
    let (table, n) = SymbolTable::read(block)?;
    match table.fits(n_bits) {
        true => Ok((table, n)),
        false => {
            Err(Error::input(format!("a block of codes has codes of more than {n_bits} bits; the file is damaged")))
        }
    }
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
