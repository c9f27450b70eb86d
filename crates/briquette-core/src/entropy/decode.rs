//! Decoding a block into symbols.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod turns;

use self::turns::{Slots, Turns};
use super::trellis::{can_have_trellis, next_state};
use crate::entropy::{HEAD, LANES, LEAST, PRECISION, SLOTS, SymbolTable};
#[cfg(target_arch = "x86_64")]
use crate::simd;
use crate::{Error, Result};

/// Instruction sets for decoding blocks; all of them give the same symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// Instructions that every processor has.
    Plain,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
}

impl Instructions {
    /// Returns the instruction sets that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        let all = [
            (Self::Plain, true),
            #[cfg(target_arch = "x86_64")]
            (Self::Avx2, simd::has_avx2_popcnt()),
            #[cfg(target_arch = "x86_64")]
            (Self::Avx512, simd::has_avx512_words()),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            (Self::Neon, true),
        ];
        all.into_iter().filter_map(|(path, is_there)| is_there.then_some(path)).collect()
    }
}

/// A decoder for blocks coded with one symbol table, or with one for each parity of a [trellis](super::trellis).
pub struct BlockDecoder {
    slots: Box<Slots>,
    /// The length of rows on a trellis.
    n_cols: Option<usize>,
    path: Instructions,
}

impl BlockDecoder {
    /// Returns a decoder that uses the best instruction set of this processor.
    pub fn new(table: &SymbolTable) -> Self {
        Self::on(Instructions::available().pop().unwrap_or(Instructions::Plain), table)
    }

    /// Returns a decoder that uses this instruction set.
    ///
    /// # Panics
    /// If this processor does not have it.
    pub fn on(path: Instructions, table: &SymbolTable) -> Self {
        let mut slots = Box::new([0; 2 * SLOTS]);
        fill(&mut slots[..SLOTS], table, |symbol| symbol);
        Self::with(path, slots, None)
    }

    /// Returns a decoder for rows of `n_cols` codes on a trellis, with the tables of even and of odd codes.
    ///
    /// # Panics
    /// If rows of this length [cannot](can_have_trellis) be coded by two tables.
    pub fn of_trellis(tables: &[SymbolTable; 2], n_cols: usize) -> Self {
        Self::of_trellis_on(Instructions::available().pop().unwrap_or(Instructions::Plain), tables, n_cols)
    }

    /// Returns a decoder for a trellis that uses this instruction set.
    ///
    /// # Panics
    /// See [`on`](Self::on) and [`of_trellis`](Self::of_trellis).
    pub fn of_trellis_on(path: Instructions, [even, odd]: &[SymbolTable; 2], n_cols: usize) -> Self {
        assert!(can_have_trellis(n_cols), "rows of {n_cols} codes cannot have a trellis");
        let mut slots = Box::new([0; 2 * SLOTS]);
        fill(&mut slots[..SLOTS], even, |pair| pair << 1 & 0xff);
        fill(&mut slots[SLOTS..], odd, |pair| pair << 1 & 0xff | 1);
        Self::with(path, slots, Some(n_cols))
    }

    fn with(path: Instructions, slots: Box<Slots>, n_cols: Option<usize>) -> Self {
        assert!(Instructions::available().contains(&path), "this processor does not support {path:?}");
        Self { slots, n_cols, path }
    }

    /// Decodes a whole block into `symbols`.
    ///
    /// # Errors
    /// Input: the block was not coded with this table and this number of symbols.
    pub fn decode(&self, block: &[u8], symbols: &mut [u8]) -> Result<()> {
        let damaged = || Error::input("a block of codes is damaged; create the file again");
        let (head, words) = block.split_at_checked(HEAD).ok_or_else(damaged)?;
        let (words, odd) = words.as_chunks::<2>();
        let mut columns = vec![0; self.n_cols.unwrap_or(0)];
        let mut turns = Turns { states: [0; LANES], columns: &mut columns, col: 0 };
        let all = turns.states.iter_mut().zip(head.as_chunks::<4>().0);
        all.for_each(|(state, bytes)| *state = u32::from_le_bytes(*bytes));
        let (n_symbols, n_words) = match self.path {
            Instructions::Plain => (0, 0),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => avx2::decode(&self.slots, &mut turns, words, symbols),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => avx512::decode(&self.slots, &mut turns, words, symbols),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Instructions::Neon if self.n_cols.is_some() => (0, 0),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Instructions::Neon => neon::decode(&self.slots, &mut turns.states, words, symbols),
        };
        let n_more = self.rest(&mut turns, &words[n_words..], &mut symbols[n_symbols..]).ok_or_else(damaged)?;
        let is_whole = n_words + n_more == words.len() && odd.is_empty() && turns.states == [LEAST; LANES];
        if is_whole { Ok(()) } else { Err(damaged()) }
    }

    /// Decodes with portable code. Returns the number of words read, or `None` if there are too few.
    fn rest(&self, turns: &mut Turns, words: &[[u8; 2]], symbols: &mut [u8]) -> Option<usize> {
        let mut n_words = 0;
        let Turns { states, columns, col } = turns;
        for turn in symbols.chunks_mut(LANES) {
            let mut columns = columns.get_mut(*col..).unwrap_or_default().iter_mut();
            for (state, symbol) in states.iter_mut().zip(turn) {
                let column = columns.next();
                let table = column.as_ref().map_or(0, |column| usize::from(**column & 1));
                let slot = self.slots[table * SLOTS + (*state % SLOTS as u32) as usize];
                *symbol = slot as u8;
                column.into_iter().for_each(|column| *column = next_state(*column, *symbol as i8));
                // At most 4,095 · 2^20 + 4,095, which is below 2^32.
                let next = (slot >> 20) * (*state >> PRECISION) + (slot >> 8 & 0xfff);
                // Branch-free: no processor predicts which states read a word.
                let takes = next < LEAST;
                let word = u32::from(u16::from_le_bytes(words.get(n_words).copied().unwrap_or_default()));
                *state = if takes { next << 16 | word } else { next };
                n_words += usize::from(takes);
            }
            *col = self.n_cols.map_or(0, |n_cols| (*col + LANES) % n_cols);
        }
        (n_words <= words.len()).then_some(n_words)
    }
}

/// Fills the slots of one table. `of` gives the code of a symbol.
fn fill(slots: &mut [u32], table: &SymbolTable, of: impl Fn(u32) -> u32) {
    let symbols = table.frequencies().iter().zip(0_u32..);
    let each = symbols.flat_map(|(&frequency, symbol)| {
        let code = of(symbol);
        (0..u32::from(frequency)).map(move |into| code | into << 8 | u32::from(frequency) << 20)
    });
    slots.iter_mut().zip(each).for_each(|(slot, entry)| *slot = entry);
}
