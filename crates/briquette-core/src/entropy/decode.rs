//! Decoding a block into symbols.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;

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

/// A decoder for blocks coded with one symbol table.
pub struct BlockDecoder {
    /// For each slot: its symbol (8 bits), its offset within the symbol's slots (12) and the symbol's frequency
    /// (12).
    slots: Box<[u32; SLOTS]>,
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
        assert!(Instructions::available().contains(&path), "this processor does not support {path:?}");
        let mut slots = Box::new([0; SLOTS]);
        let symbols = table.frequencies().iter().zip(0_u32..);
        let each = symbols.flat_map(|(&frequency, symbol)| {
            (0..u32::from(frequency)).map(move |into| symbol | into << 8 | u32::from(frequency) << 20)
        });
        slots.iter_mut().zip(each).for_each(|(slot, entry)| *slot = entry);
        Self { slots, path }
    }

    /// Decodes a whole block into `symbols`.
    ///
    /// # Errors
    /// Input: the block was not coded with this table and this number of symbols.
    pub fn decode(&self, block: &[u8], symbols: &mut [u8]) -> Result<()> {
        let damaged = || Error::input("a block of codes is damaged; create the file again");
        let (head, words) = block.split_at_checked(HEAD).ok_or_else(damaged)?;
        let (words, odd) = words.as_chunks::<2>();
        let mut states = [0; LANES];
        states.iter_mut().zip(head.as_chunks::<4>().0).for_each(|(state, bytes)| *state = u32::from_le_bytes(*bytes));
        let (n_symbols, n_words) = match self.path {
            Instructions::Plain => (0, 0),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => avx2::decode(&self.slots, &mut states, words, symbols),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => avx512::decode(&self.slots, &mut states, words, symbols),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Instructions::Neon => neon::decode(&self.slots, &mut states, words, symbols),
        };
        let n_more = self.rest(&mut states, &words[n_words..], &mut symbols[n_symbols..]).ok_or_else(damaged)?;
        let is_whole = n_words + n_more == words.len() && odd.is_empty() && states == [LEAST; LANES];
        if is_whole { Ok(()) } else { Err(damaged()) }
    }

    /// Decodes with portable code. Returns the number of words read, or `None` if there are too few.
    fn rest(&self, states: &mut [u32; LANES], words: &[[u8; 2]], symbols: &mut [u8]) -> Option<usize> {
        let mut n_words = 0;
        for turn in symbols.chunks_mut(LANES) {
            for (state, symbol) in states.iter_mut().zip(turn) {
                let slot = self.slots[(*state % SLOTS as u32) as usize];
                *symbol = slot as u8;
                // At most 4,095 · 2^20 + 4,095, which is below 2^32.
                let next = (slot >> 20) * (*state >> PRECISION) + (slot >> 8 & 0xfff);
                // Branch-free: no processor predicts which states read a word.
                let takes = next < LEAST;
                let word = u32::from(u16::from_le_bytes(words.get(n_words).copied().unwrap_or_default()));
                *state = if takes { next << 16 | word } else { next };
                n_words += usize::from(takes);
            }
        }
        (n_words <= words.len()).then_some(n_words)
    }
}
