//! Measures the size of entropy-coded blocks relative to their entropy, and the speed of coding and decoding.
//!
//! For codes of normal distributions, it measures codes on a trellis too, of twice the width: about as many bytes.
//! Each file argument holds the codes of one tensor as bytes. Without arguments, the codes are sampled from
//! normal distributions of four widths. Prints a line of JSON for each.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use briquette_core::entropy::trellis::next_state;
use briquette_core::entropy::{BlockDecoder, Instructions, SymbolTable, encode, encode_trellis};
use std::time::Instant;

/// Codes in a block.
const BLOCK: usize = 1 << 17;

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    for file in &files {
        measure(file, &std::fs::read(file).unwrap());
    }
    for width in [0.6, 1.5, 4.0, 30.0].into_iter().filter(|_| files.is_empty()) {
        measure(&format!("bell {width}"), &bell(1 << 20, width));
        if width < 20.0 {
            measure_trellis(&format!("trellis {width}"), &on_trellis(&bell(1 << 20, 2.0 * width)));
        }
    }
}

fn measure(name: &str, symbols: &[u8]) {
    let mut counts = [0_u64; 256];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    let table = SymbolTable::of_counts(&counts);
    let (n, mut blocks) = (symbols.len() as f64, Vec::new());
    let coding = seconds(&mut || {
        blocks = symbols.chunks(BLOCK).map(|symbols| encoded(symbols, &table)).collect::<Vec<Vec<u8>>>();
    });
    let mut bytes = Vec::new();
    table.write(&mut bytes);
    let n_bytes = bytes.len() + blocks.iter().map(Vec::len).sum::<usize>();
    let entropy: f64 = counts.iter().filter(|&&c| c > 0).map(|&c| c as f64 * (n / c as f64).log2()).sum::<f64>() / 8.0;
    let mut decoded = vec![0; symbols.len()];
    let mut decoding = |path| {
        let decoder = BlockDecoder::on(path, &table);
        let each = |(block, symbols): (&Vec<u8>, &mut [u8])| decoder.decode(block, symbols).unwrap();
        seconds(&mut || blocks.iter().zip(decoded.chunks_mut(BLOCK)).for_each(each))
    };
    let paths: Vec<String> =
        Instructions::available().into_iter().map(|path| format!("\"{path:?}\": {:.6}", decoding(path))).collect();
    assert_eq!(decoded, symbols);
    println!(
        "{{\"name\": {name:?}, \"codes\": {n}, \"entropy\": {entropy:.0}, \"bytes\": {n_bytes}, \"encode_s\": {coding:.6}, \"decode_s\": {{{}}}}}",
        paths.join(", ")
    );
}

/// Codes in a row of a trellis.
const N_COLS: usize = 512;

fn measure_trellis(name: &str, codes: &[i8]) {
    let tables = [0, 1].map(|parity| {
        let mut counts = [0_u64; 256];
        codes.iter().filter(|&code| code & 1 == parity).for_each(|code| counts[usize::from((code >> 1) as u8)] += 1);
        SymbolTable::of_counts(&counts)
    });
    let mut blocks = Vec::new();
    let coding = seconds(&mut || {
        blocks = codes
            .chunks(BLOCK)
            .map(|codes| {
                let mut block = Vec::new();
                encode_trellis(codes, &tables, &mut block);
                block
            })
            .collect::<Vec<Vec<u8>>>();
    });
    let mut decoded = vec![0_i8; codes.len()];
    let mut decoding = |path| {
        let decoder = BlockDecoder::of_trellis_on(path, &tables, N_COLS);
        let each = |(block, codes): (&Vec<u8>, &mut [i8])| {
            decoder.decode(block, bytemuck::cast_slice_mut(codes)).unwrap();
        };
        seconds(&mut || blocks.iter().zip(decoded.chunks_mut(BLOCK)).for_each(each))
    };
    let paths: Vec<String> =
        Instructions::available().into_iter().map(|path| format!("\"{path:?}\": {:.6}", decoding(path))).collect();
    assert_eq!(decoded, codes);
    let n_bytes: usize = blocks.iter().map(Vec::len).sum();
    println!(
        "{{\"name\": {name:?}, \"codes\": {}, \"bytes\": {n_bytes}, \"encode_s\": {coding:.6}, \"decode_s\": {{{}}}}}",
        codes.len(),
        paths.join(", ")
    );
}

/// Returns the nearest codes that follow the trellis.
fn on_trellis(symbols: &[u8]) -> Vec<i8> {
    let mut states = vec![0; N_COLS];
    let step = |(at, &symbol): (usize, &u8)| {
        // Blocks begin anew.
        if at % BLOCK == 0 {
            states.fill(0);
        }
        let state = &mut states[at % N_COLS];
        let code = (symbol.wrapping_sub(128) & !1 | *state & 1) as i8;
        *state = next_state(*state, code);
        code
    };
    symbols.iter().enumerate().map(step).collect()
}

fn encoded(symbols: &[u8], table: &SymbolTable) -> Vec<u8> {
    let mut block = Vec::new();
    encode(symbols, table, &mut block);
    block
}

/// Returns the median time of five runs in seconds.
fn seconds(work: &mut dyn FnMut()) -> f64 {
    let mut one = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    let mut all: Vec<f64> = (0..5).map(|_| one()).collect();
    all.sort_by(f64::total_cmp);
    all[2]
}

/// Returns codes from a normal distribution of this width around 128.
fn bell(n: usize, width: f64) -> Vec<u8> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..n).map(|_| (128.0 + width * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).clamp(0.0, 255.0) as u8).collect()
}
