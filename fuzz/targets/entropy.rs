//! Fuzzes the entropy decoder with a table of frequencies, a number of symbols and a block.
//!
//! All instruction sets must give the same symbols or all an error. Also decodes the input as a block of codes in a file, with and without
//! a trellis.
#![no_main]

use briquette_core::entropy::trellis::follows;
use briquette_core::entropy::{BlockDecoder, Instructions, SymbolTable, read_block, read_trellis_block};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(([n_bits, n_codes], block)) = input.split_first_chunk() {
        let (n_bits, mut codes) = (2 + n_bits % 7, vec![0; usize::from(*n_codes) * 16]);
        if read_block(block, n_bits, &mut codes).is_ok() {
            let most = 1_i16 << (n_bits - 1);
            assert!(codes.iter().all(|&code| (-most..most).contains(&i16::from(code))));
        }
    }
    if let Some(([n_turns, n_rows], block)) = input.split_first_chunk() {
        let n_cols = 32 * (1 + usize::from(n_turns % 4));
        let mut codes = vec![0; usize::from(*n_rows) * n_cols];
        let is_read = read_trellis_block(block, n_cols, &mut codes).is_ok();
        if is_read && block.first() == Some(&2) && block.len() != codes.len() {
            assert!(follows(&codes, n_cols));
        }
        decode_trellis(block, n_cols, codes.len());
    }
    let Ok((table, at)) = SymbolTable::read(input) else { return };
    let Some(([low, high], block)) = input[at..].split_first_chunk() else { return };
    let decoded = |path| {
        let mut symbols = vec![0; usize::from(u16::from_le_bytes([*low, *high]))];
        let is_whole = BlockDecoder::on(path, &table).decode(block, &mut symbols).is_ok();
        (is_whole, symbols)
    };
    let plain = decoded(Instructions::Plain);
    for path in Instructions::available() {
        assert!(decoded(path) == plain, "{path:?}");
    }
});

/// Decodes two tables and a block on every path.
fn decode_trellis(input: &[u8], n_cols: usize, n: usize) {
    let Ok((even, n_even)) = SymbolTable::read(input) else { return };
    let Ok((odd, n_odd)) = SymbolTable::read(&input[n_even..]) else { return };
    let (tables, block) = ([even, odd], &input[n_even + n_odd..]);
    let decoded = |path| {
        let mut symbols = vec![0; n];
        (BlockDecoder::of_trellis_on(path, &tables, n_cols).decode(block, &mut symbols).is_ok(), symbols)
    };
    let plain = decoded(Instructions::Plain);
    for path in Instructions::available() {
        assert!(decoded(path) == plain, "{path:?}");
    }
}
