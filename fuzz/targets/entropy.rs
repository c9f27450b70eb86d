//! Fuzzes the entropy decoder with a table of frequencies, a number of symbols and a block.
//!
//! All instruction sets must give the same symbols or all an error. Also decodes the input as a block of codes in a file.
#![no_main]

use briquette_core::entropy::{BlockDecoder, Instructions, SymbolTable, read_block};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(([n_bits, n_codes], block)) = input.split_first_chunk() {
        let (n_bits, mut codes) = (2 + n_bits % 7, vec![0; usize::from(*n_codes) * 16]);
        if read_block(block, n_bits, &mut codes).is_ok() {
            let most = 1_i16 << (n_bits - 1);
            assert!(codes.iter().all(|&code| (-most..most).contains(&i16::from(code))));
        }
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
