//! Encoding symbols into a block.

use crate::entropy::{HEAD, LANES, LEAST, PRECISION, SLOTS, SymbolTable};

/// The constants for coding one symbol.
///
/// `⌊x / f⌋·2^12 + x mod f + c` is `x + c + ⌊x / f⌋·(2^12 − f)`. The quotient is a product with a rounded
/// reciprocal, exact for all `x < 2^31`, as in `rans_byte` by F. Giesen. For `f = 1` the product is one less
/// than the quotient; the bias corrects this.
#[derive(Clone, Copy)]
struct SymbolStep {
    reciprocal: u32,
    shift: u32,
    bias: u32,
    /// 4,096 minus the frequency.
    rest: u32,
    /// From this value on, a state would exceed 2^31.
    limit: u32,
}

impl SymbolStep {
    fn new(frequency: u16, start: u16) -> Self {
        let (frequency, start) = (u32::from(frequency), u32::from(start));
        let (rest, limit) = (SLOTS as u32 - frequency, frequency << (31 - PRECISION));
        if frequency < 2 {
            return Self { reciprocal: u32::MAX, shift: 0, bias: start + SLOTS as u32 - 1, rest, limit };
        }
        let shift = 32 - (frequency - 1).leading_zeros();
        let reciprocal = ((1_u64 << (shift + 31)).div_ceil(u64::from(frequency))) as u32;
        Self { reciprocal, shift: shift - 1, bias: start, rest, limit }
    }

    /// Returns the state after the symbol.
    fn push(&self, state: u32) -> u32 {
        let quotient = ((u64::from(state) * u64::from(self.reciprocal)) >> 32) as u32 >> self.shift;
        state + self.bias + quotient * self.rest
    }
}

/// Appends a block of these symbols.
///
/// # Panics
/// If a symbol has no frequency.
pub fn encode(symbols: &[u8], table: &SymbolTable, block: &mut Vec<u8>) {
    let (frequencies, starts) = (table.frequencies(), table.starts());
    push(symbols, &std::array::from_fn(|symbol| SymbolStep::new(frequencies[symbol], starts[symbol])), block);
}

/// Appends a block of codes, coded by the table of their parity. See [`trellis`](super::trellis).
///
/// # Panics
/// If a code has no frequency.
pub fn encode_trellis(codes: &[i8], tables: &[SymbolTable; 2], block: &mut Vec<u8>) {
    let starts = tables.each_ref().map(SymbolTable::starts);
    let step = |code: usize| {
        let (parity, pair) = (code & 1, usize::from((code as u8 as i8 >> 1) as u8));
        SymbolStep::new(tables[parity].frequencies()[pair], starts[parity][pair])
    };
    push(bytemuck::cast_slice(codes), &std::array::from_fn(step), block);
}

/// Appends a block of symbols, each coded by its step.
fn push(symbols: &[u8], steps: &[SymbolStep; 256], block: &mut Vec<u8>) {
    let mut states = [LEAST; LANES];
    // Words are written backwards, at most one per symbol, because a decoder reads the last word first. Each is
    // stored unconditionally, since no processor predicts which states emit one.
    let mut words = vec![0_u16; symbols.len() + 1];
    let mut next = symbols.len();
    let (whole, rest) = symbols.split_at(symbols.len() / LANES * LANES);
    for turn in std::iter::once(rest).chain(whole.rchunks_exact(LANES)) {
        for (state, &symbol) in states.iter_mut().zip(turn).rev() {
            let step = &steps[usize::from(symbol)];
            assert!(step.limit > 0, "symbol {symbol} has no frequency");
            let is_due = *state >= step.limit;
            words[next] = *state as u16;
            next -= usize::from(is_due);
            *state = step.push(*state >> (16 * u32::from(is_due)));
        }
    }
    let words = &words[next + 1..];
    block.reserve(HEAD + 2 * words.len());
    block.extend(states.iter().flat_map(|state| state.to_le_bytes()));
    block.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}
