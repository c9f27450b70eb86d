//! Codes that depend on the codes above them in their column: a trellis.
//!
//! Each column has one of eight states. In an even state, a code is even; in an odd state, it is odd. So a step is
//! half as large as without a trellis at the same number of bits, and an even or an odd code still tells two of four
//! neighbours apart. Two symbol tables, one for each parity, code the pairs `code >> 1`.
//!
//! The next state follows from the state `s` and the code modulo 4. This is the trellis of G. Ungerboeck, "Channel
//! coding with multilevel/phase signals", 1982, with the four subsets of codes modulo 4. Its use with entropy coding is
//! from T. Fischer, M. Wang, "Entropy-constrained trellis-coded quantization", 1992.

use crate::entropy::SymbolTable;

/// Number of states of a column.
pub const N_STATES: usize = 8;

/// Returns the state of a column after a code. Every column begins with state 0.
///
/// `next = 2·s mod 8 + (b1 xor s1 xor s2)`, where `b1` is bit 1 of the code, and `s1` and `s2` are bits 1 and 2 of the state.
pub const fn next_state(state: u8, code: i8) -> u8 {
    (state << 1 & 7) | ((code as u8 >> 1) ^ (state >> 1) ^ (state >> 2)) & 1
}

/// Returns whether rows of `n_cols` codes have the parity of their states, so that two tables can code them.
///
/// Rows whose length is no multiple of 32 never have: lanes of a decoder are columns.
pub fn follows(codes: &[i8], n_cols: usize) -> bool {
    if !can_have_trellis(n_cols) {
        return false;
    }
    let mut states = vec![0_u8; n_cols];
    codes.chunks(n_cols).all(|row| {
        let step = |(state, &code): (&mut u8, &i8)| {
            let is_right = (*state ^ code as u8) & 1 == 0;
            *state = next_state(*state, code);
            is_right
        };
        // No early exit within a row: all columns in turn are one vector operation.
        states.iter_mut().zip(row).map(step).fold(true, |all, is_right| all & is_right)
    })
}

/// Returns whether rows of this length can be coded by two tables.
pub fn can_have_trellis(n_cols: usize) -> bool {
    n_cols > 0 && n_cols.is_multiple_of(super::LANES)
}

/// Returns the tables of even and of odd codes, of symbols `code >> 1`.
pub(super) fn tables(counts: &[u64; 256]) -> [SymbolTable; 2] {
    [0, 1].map(|parity| {
        let mut of_pairs = [0; 256];
        (i8::MIN..=i8::MAX)
            .filter(|code| code & 1 == parity)
            .for_each(|code| of_pairs[usize::from((code >> 1) as u8)] = counts[usize::from(code as u8)]);
        SymbolTable::of_counts(&of_pairs)
    })
}
