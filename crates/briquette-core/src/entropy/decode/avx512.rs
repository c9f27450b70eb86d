//! Decodes with eight states per register and spreads words over the states that read one with masks.
//!
//! On Zen 4, sixteen states per register were slower than AVX2.
#![allow(unsafe_code)]

use super::avx2::{entries, table_of};
use super::turns::{Slots, Turns};
use crate::entropy::{LANES, LEAST, PRECISION};
use std::arch::asm;
use std::arch::x86_64::*;

/// Decodes while a whole turn of symbols and its words are certain to be available. Returns the number of
/// symbols and words.
pub(super) fn decode(slots: &Slots, known: &mut Turns, words: &[[u8; 2]], symbols: &mut [u8]) -> (usize, usize) {
    // SAFETY: a decoder uses this path only if the processor has the instructions.
    unsafe {
        match known.columns.is_empty() {
            true => turns::<false>(slots, known, words, symbols),
            false => turns::<true>(slots, known, words, symbols),
        }
    }
}

#[target_feature(enable = "avx512f,avx512vl,avx2,popcnt")]
fn turns<const HAS_TRELLIS: bool>(
    slots: &Slots,
    known: &mut Turns,
    words: &[[u8; 2]],
    symbols: &mut [u8],
) -> (usize, usize) {
    let Turns { states, columns, col } = known;
    // Rows on a trellis are multiples of 32 columns.
    let columns = columns.as_chunks_mut::<LANES>().0;
    // SAFETY: there are 32 states.
    let mut x: [__m256i; 4] =
        std::array::from_fn(|part| unsafe { _mm256_loadu_si256(states[8 * part..].as_ptr().cast()) });
    let mut none = [0; LANES];
    let (mut n_symbols, mut n_words, mut at) = (0, 0, *col / LANES);
    for turn in symbols.chunks_exact_mut(LANES) {
        if n_words + LANES > words.len() {
            break;
        }
        let of_turn = if HAS_TRELLIS { &mut columns[at] } else { &mut none };
        let mut found = [_mm256_setzero_si256(); 4];
        for part in 0..4 {
            let table = if HAS_TRELLIS { table_of(of_turn, part) } else { _mm256_setzero_si256() };
            let entry = entries(slots, x[part], table);
            found[part] = _mm256_and_si256(entry, _mm256_set1_epi32(0xff));
            let into = _mm256_and_si256(_mm256_srli_epi32::<8>(entry), _mm256_set1_epi32(0xfff));
            let times =
                _mm256_mullo_epi32(_mm256_srli_epi32::<20>(entry), _mm256_srli_epi32::<{ PRECISION as i32 }>(x[part]));
            let next = _mm256_add_epi32(times, into);
            let low = _mm256_cmplt_epu32_mask(next, _mm256_set1_epi32(LEAST as i32));
            // SAFETY: at least 8 words are left, because the turn began with 32 and each earlier part read at
            // most 8.
            let some = unsafe { _mm_loadu_si128(words.as_ptr().add(n_words).cast()) };
            let read = _mm256_maskz_expand_epi32(low, _mm256_cvtepu16_epi32(some));
            x[part] = _mm256_or_si256(_mm256_mask_slli_epi32::<16>(next, low, next), read);
            // Without this order, the compiler completes all parts at the end of a turn, and the next turn waits for them: 1.15
            // times as long with a trellis.
            // SAFETY: no instruction.
            unsafe { asm!("/* {0} */", inout(ymm_reg) x[part], options(nostack, preserves_flags)) };
            n_words += low.count_ones() as usize;
        }
        // Packing works on halves of registers: symbols 0-3, 8-11, 16-19, 24-27, then the rest.
        let halves =
            _mm256_packus_epi16(_mm256_packus_epi32(found[0], found[1]), _mm256_packus_epi32(found[2], found[3]));
        let ordered = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: a turn has 32 symbols.
        unsafe { _mm256_storeu_si256(turn.as_mut_ptr().cast(), ordered) };
        n_symbols += LANES;
        if HAS_TRELLIS {
            step(of_turn, ordered);
            at = if at + 1 < columns.len() { at + 1 } else { 0 };
        }
    }
    *col = at * LANES;
    for (part, x) in x.iter().enumerate() {
        // SAFETY: there are 32 states.
        unsafe { _mm256_storeu_si256(states[8 * part..].as_mut_ptr().cast(), *x) };
    }
    (n_symbols, n_words)
}

/// Replaces the states of 32 columns by those after these codes. See [`next_state`](crate::entropy::trellis::next_state).
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,popcnt")]
fn step(columns: &mut [u8; LANES], codes: __m256i) {
    // SAFETY: there are 32 states.
    let states = unsafe { _mm256_loadu_si256(columns.as_ptr().cast()) };
    // Shifts of 16 bits move foreign bits only into the upper bits of a byte.
    let [code, middle, upper] =
        [_mm256_srli_epi16::<1>(codes), _mm256_srli_epi16::<1>(states), _mm256_srli_epi16::<2>(states)];
    let sum = _mm256_ternarylogic_epi32::<0x96>(code, middle, upper);
    // Bit 0 from the sum, the others from the doubled state. Bits above bit 2 are never used.
    let next = _mm256_ternarylogic_epi32::<0xe4>(sum, _mm256_add_epi8(states, states), _mm256_set1_epi8(1));
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(columns.as_mut_ptr().cast(), next) };
}
