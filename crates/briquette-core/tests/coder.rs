//! Entropy coding on every path: codes decode to themselves, and invalid blocks are errors.

#![allow(clippy::unwrap_used)]

use briquette_core::entropy::trellis::{follows, next_state};
use briquette_core::entropy::{
    BlockDecoder, Instructions, SymbolTable, encode, encode_trellis, read_block, read_trellis_block, write_block,
    write_trellis_block,
};
use proptest::prelude::*;

fn counts(symbols: &[u8]) -> [u64; 256] {
    let mut counts = [0; 256];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    counts
}

/// Decodes a block on every path and checks that all give the same symbols or an error.
fn decoded(block: &[u8], table: &SymbolTable, n: usize) -> Option<Vec<u8>> {
    let on = |path: Instructions| {
        let mut symbols = vec![0; n];
        (BlockDecoder::on(path, table).decode(block, &mut symbols).map_err(|error| error.to_string()), symbols)
    };
    let plain = on(Instructions::Plain);
    for path in Instructions::available() {
        assert!(on(path) == plain, "{path:?}, {n} symbols of {} bytes", block.len());
    }
    plain.0.is_ok().then_some(plain.1)
}

/// Returns symbols from a normal distribution of this width around 128.
fn bell(n: usize, width: f64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..n).map(|_| (128.0 + width * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).clamp(0.0, 255.0) as u8).collect()
}

/// Generates tables of few and of many symbols; in some, one symbol has nearly the whole table.
fn table() -> impl Strategy<Value = SymbolTable> {
    let count = prop_oneof![8 => Just(0_u64), 4 => 1..20_u64, 2 => 1..2000_u64, 1 => Just(1 << 40)];
    prop::collection::vec(count, 256).prop_map(|counts| SymbolTable::of_counts(&counts.try_into().unwrap()))
}

/// Returns the nearest codes below that follow the trellis.
fn on_trellis(symbols: &[u8], n_cols: usize) -> Vec<i8> {
    let mut states = vec![0; n_cols];
    let step = |(at, &symbol): (usize, &u8)| {
        let state = &mut states[at % n_cols];
        let code = (symbol & !1 | *state & 1) as i8;
        *state = next_state(*state, code);
        code
    };
    symbols.iter().enumerate().map(step).collect()
}

/// Returns the tables of even and of odd codes; symbols are halves of codes.
fn tables(codes: &[i8]) -> [SymbolTable; 2] {
    [0, 1].map(|parity| {
        let of = codes.iter().filter(|&code| code & 1 == parity).map(|code| (code >> 1) as u8).collect::<Vec<u8>>();
        SymbolTable::of_counts(&counts(&of))
    })
}

/// Decodes a block of a trellis on every path and checks that all give the same codes or an error.
fn decoded_trellis(block: &[u8], tables: &[SymbolTable; 2], n_cols: usize, n: usize) -> Option<Vec<i8>> {
    let on = |path: Instructions| {
        let mut codes = vec![0_i8; n];
        let decoder = BlockDecoder::of_trellis_on(path, tables, n_cols);
        (decoder.decode(block, bytemuck::cast_slice_mut(&mut codes)).map_err(|error| error.to_string()), codes)
    };
    let plain = on(Instructions::Plain);
    for path in Instructions::available() {
        assert!(on(path) == plain, "{path:?}, {n} codes of {} bytes", block.len());
    }
    plain.0.is_ok().then_some(plain.1)
}

proptest! {
    #[test]
    fn codes_on_a_trellis_decode_to_themselves(
        symbols in prop::collection::vec(prop_oneof![Just(7_u8), 0..4_u8, any::<u8>()], 0..3000), n_turns in 1..5_usize,
        at in any::<prop::sample::Index>(), flip in 1..=255_u8,
    ) {
        let n_cols = 32 * n_turns;
        let codes = on_trellis(&symbols[..symbols.len() / n_cols * n_cols], n_cols);
        let (tables, mut coded) = (tables(&codes), Vec::new());
        encode_trellis(&codes, &tables, &mut coded);
        prop_assert_eq!(decoded_trellis(&coded, &tables, n_cols, codes.len()), Some(codes.clone()));
        let (place, n) = (at.index(coded.len()), codes.len());
        prop_assert_eq!(decoded_trellis(&coded[..place], &tables, n_cols, n), None);
        coded[place] ^= flip;
        prop_assert_ne!(decoded_trellis(&coded, &tables, n_cols, n), Some(codes));
    }

    #[test]
    fn blocks_of_a_trellis_decode_whether_codes_follow_it(
        symbols in prop::collection::vec(prop_oneof![3 => 0..4_u8, 1 => any::<u8>()], 0..3000), n_cols in prop_oneof![Just(32_usize), Just(96), Just(50)],
        keeps in any::<bool>(),
    ) {
        let symbols = &symbols[..symbols.len() / n_cols * n_cols];
        let codes = if keeps { on_trellis(symbols, n_cols) } else { symbols.iter().map(|&symbol| symbol as i8).collect() };
        if keeps {
            prop_assert_eq!(follows(&codes, n_cols), n_cols != 50);
        }
        let mut block = vec![9];
        write_trellis_block(&codes, n_cols, &mut block);
        prop_assert!(block.len() - 1 <= codes.len());
        let mut found = vec![1; codes.len()];
        read_trellis_block(&block[1..], n_cols, &mut found).unwrap();
        prop_assert_eq!(found, codes);
    }

    #[test]
    fn arbitrary_blocks_of_a_trellis_are_codes_or_an_error(
        kind in 0..4_u8, rest in prop::collection::vec(any::<u8>(), 0..2000), n_rows in 0..40_usize, n_cols in prop_oneof![Just(32_usize), Just(96), Just(50)],
    ) {
        let mut codes = vec![0; n_rows * n_cols];
        let block = [&[kind][..], &rest].concat();
        if read_trellis_block(&block, n_cols, &mut codes).is_ok() && kind == 2 && block.len() != codes.len() {
            prop_assert!(follows(&codes, n_cols));
        }
    }

    #[test]
    fn arbitrary_bytes_decode_equally_on_a_trellis(
        bytes in prop::collection::vec(any::<u8>(), 0..2000), n_rows in 0..60_usize, n_turns in 1..4_usize, even in table(), odd in table(),
    ) {
        decoded_trellis(&bytes, &[even, odd], 32 * n_turns, 32 * n_turns * n_rows);
    }

    #[test]
    fn coded_symbols_decode_to_themselves(symbols in prop::collection::vec(prop_oneof![Just(7_u8), 0..4_u8, any::<u8>()], 0..3000)) {
        let table = SymbolTable::of_counts(&counts(&symbols));
        let mut block = Vec::new();
        encode(&symbols, &table, &mut block);
        prop_assert_eq!(decoded(&block, &table, symbols.len()), Some(symbols));
        let mut bytes = Vec::new();
        table.write(&mut bytes);
        let n_bytes = bytes.len();
        bytes.push(1);
        prop_assert_eq!(SymbolTable::read(&bytes).unwrap(), (table, n_bytes));
    }

    #[test]
    fn arbitrary_bytes_are_a_table_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok((table, _)) = SymbolTable::read(&bytes) {
            prop_assert_eq!(table.frequencies().iter().map(|&frequency| u32::from(frequency)).sum::<u32>(), 4096);
        }
    }

    #[test]
    fn blocks_decode_and_are_no_larger_than_packed_codes(bytes in prop::collection::vec(any::<u8>(), 0..3000), n_bits in 2..=8_u8, spread in 0..8_u8) {
        let codes: Vec<i8> = bytes.iter().map(|&byte| (byte as i8) >> (8 - n_bits + spread.min(n_bits - 1))).collect();
        let mut block = vec![9];
        write_block(&codes, n_bits, &mut block);
        prop_assert!(block.len() - 1 <= (codes.len() * usize::from(n_bits)).div_ceil(8));
        let mut found = vec![1; codes.len()];
        read_block(&block[1..], n_bits, &mut found).unwrap();
        prop_assert_eq!(found, codes);
    }

    #[test]
    fn arbitrary_blocks_decode_to_codes_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2000), n in 0..4000_usize, n_bits in 2..=8_u8) {
        let mut codes = vec![0; n];
        if read_block(&bytes, n_bits, &mut codes).is_ok() {
            let most = 1_i16 << (n_bits - 1);
            prop_assert!(codes.iter().all(|&code| (-most..most).contains(&i16::from(code))));
        }
    }

    #[test]
    fn arbitrary_bytes_decode_equally_on_every_path(bytes in prop::collection::vec(any::<u8>(), 0..2000), n in 0..4000_usize, table in table()) {
        decoded(&bytes, &table, n);
    }

    #[test]
    fn blocks_of_another_table_decode_equally_on_every_path(symbols in prop::collection::vec(any::<u8>(), 0..3000), n in 0..4000_usize, table in table()) {
        let mut block = Vec::new();
        encode(&symbols, &SymbolTable::of_counts(&counts(&symbols)), &mut block);
        decoded(&block, &table, n);
    }

    #[test]
    fn altered_blocks_are_errors(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let symbols = bell(5000, 9.0);
        let table = SymbolTable::of_counts(&counts(&symbols));
        let mut block = Vec::new();
        encode(&symbols, &table, &mut block);
        prop_assert_eq!(decoded(&block[..at.index(block.len())], &table, symbols.len()), None);
        prop_assert_eq!(decoded(&block, &table, at.index(symbols.len())), None);
        prop_assert_eq!(decoded(&[&block[..], &[flip]].concat(), &table, symbols.len()), None);
        let place = at.index(block.len());
        block[place] ^= flip;
        prop_assert_ne!(decoded(&block, &table, symbols.len()), Some(symbols));
    }
}

#[test]
fn truncated_blocks_are_errors_on_every_path() {
    for n in [0, 1, 31, 32, 33, 63, 64, 65, 96, 300] {
        for width in [0.1, 2.0, 40.0] {
            let (symbols, mut block) = (bell(n, width), Vec::new());
            let table = SymbolTable::of_counts(&counts(&symbols));
            encode(&symbols, &table, &mut block);
            // Each prefix is in an allocation of its own length.
            (0..block.len()).for_each(|cut| assert_eq!(decoded(&Box::from(&block[..cut]), &table, n), None));
            assert_eq!(decoded(&block, &table, n), Some(symbols));
        }
    }
}

#[test]
fn impossible_states_decode_equally_on_every_path() {
    // A symbol with nearly the whole table takes the largest state beyond 2^31.
    let table = SymbolTable::of_counts(&counts(&[7]));
    for head in [0x00, 0x7f, 0x80, 0xff] {
        let block = [vec![head; 128], bell(400, 90.0)].concat();
        (0..1000).step_by(31).for_each(|n| assert_eq!(decoded(&block, &table, n), None));
    }
}

#[test]
fn block_size_is_close_to_the_entropy() {
    for (width, most) in [(0.7, 1.012), (3.0, 1.005), (12.0, 1.005), (40.0, 1.005)] {
        let symbols = bell(1 << 18, width);
        let (counts, n) = (counts(&symbols), symbols.len() as f64);
        let table = SymbolTable::of_counts(&counts);
        let mut block = Vec::new();
        encode(&symbols, &table, &mut block);
        table.write(&mut block);
        let entropy: f64 = counts.iter().filter(|&&count| count > 0).map(|&c| c as f64 * (n / c as f64).log2()).sum();
        let ratio = block.len() as f64 * 8.0 / entropy;
        assert!((1.0..most).contains(&ratio), "{ratio} of {} bits each at width {width}", entropy / n);
    }
}

#[test]
fn a_single_symbol_takes_almost_no_bits() {
    for symbol in [0, 1, 77, 255] {
        let (symbols, mut block) = (vec![symbol; 100_000], Vec::new());
        let table = SymbolTable::of_counts(&counts(&symbols));
        encode(&symbols, &table, &mut block);
        assert!(block.len() < 160, "{} bytes", block.len());
        assert_eq!(decoded(&block, &table, symbols.len()), Some(symbols));
    }
}
