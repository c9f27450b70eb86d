//! A table of frequencies, a number of symbols and a block: the same symbols on every path, or an error on all of them.
#![no_main]

use briquette_entropy::{Decoder, Path, SymbolTable};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok((table, at)) = SymbolTable::read(input) else { return };
    let Some(([low, high], block)) = input[at..].split_first_chunk() else { return };
    let decoded = |path| {
        let mut symbols = vec![0; usize::from(u16::from_le_bytes([*low, *high]))];
        Decoder::on(path, &table).decode(block, &mut symbols).map(|()| symbols).ok()
    };
    let found: Vec<_> = Path::available().into_iter().map(decoded).collect();
    assert!(found.iter().all(|symbols| *symbols == found[0]));
});
