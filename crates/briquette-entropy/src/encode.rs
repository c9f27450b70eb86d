//! Symbols to a block.

use crate::{HEAD, LANES, LEAST, PRECISION, SymbolTable};

/// What coding one symbol takes.
#[derive(Clone, Copy)]
struct Step {
    frequency: u32,
    start: u32,
    /// A state from here on would pass 2^31.
    limit: u32,
}

/// Appends a block of these symbols.
///
/// # Panics
/// If a symbol has no frequency.
pub fn encode(symbols: &[u8], table: &SymbolTable, block: &mut Vec<u8>) {
    let starts = table.starts();
    let steps: [Step; 256] = std::array::from_fn(|symbol| {
        let frequency = u32::from(table.frequencies()[symbol]);
        Step { frequency, start: u32::from(starts[symbol]), limit: frequency << (31 - PRECISION) }
    });
    let mut states = [LEAST; LANES];
    // A decoder reads the last word first.
    let mut words: Vec<u16> = Vec::with_capacity(symbols.len() / 2);
    let n_whole = symbols.len() / LANES * LANES;
    let (whole, rest) = symbols.split_at(n_whole);
    for turn in std::iter::once(rest).chain(whole.rchunks_exact(LANES)) {
        for (state, &symbol) in states.iter_mut().zip(turn).rev() {
            let step = steps[usize::from(symbol)];
            assert!(step.frequency > 0, "symbol {symbol} has no frequency");
            if *state >= step.limit {
                words.push(*state as u16);
                *state >>= 16;
            }
            *state = ((*state / step.frequency) << PRECISION) + *state % step.frequency + step.start;
        }
    }
    block.reserve(HEAD + 2 * words.len());
    block.extend(states.iter().flat_map(|state| state.to_le_bytes()));
    block.extend(words.iter().rev().flat_map(|word| word.to_le_bytes()));
}
