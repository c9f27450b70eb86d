//! State and tables that the decoders of all instruction sets share.

use crate::entropy::{LANES, SLOTS};

/// For each slot of up to two tables: its symbol (8 bits), its offset within the symbol's slots (12) and the symbol's
/// frequency (12).
pub(super) type Slots = [u32; 2 * SLOTS];

/// The state of a decoder between turns of 32 symbols.
pub(super) struct Turns<'a> {
    pub(super) states: [u32; LANES],
    /// The trellis states of the columns; empty without a trellis.
    pub(super) columns: &'a mut [u8],
    /// The column of the next symbol.
    pub(super) col: usize,
}
