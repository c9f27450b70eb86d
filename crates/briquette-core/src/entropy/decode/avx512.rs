//! Decodes with eight states per register and spreads words over the states that read one with masks.
//!
//! On Zen 4, sixteen states per register were slower than AVX2, and a gather took a tenth longer than separate
//! loads.
#![allow(unsafe_code)]

use crate::entropy::{LANES, LEAST, PRECISION, SLOTS};
use std::arch::x86_64::*;

/// Decodes while a whole turn of symbols and its words are certain to be available. Returns the number of
/// symbols and words.
pub(super) fn decode(
    slots: &[u32; SLOTS],
    states: &mut [u32; LANES],
    words: &[[u8; 2]],
    symbols: &mut [u8],
) -> (usize, usize) {
    // SAFETY: a decoder uses this path only if the processor has the instructions.
    unsafe { turns(slots, states, words, symbols) }
}

#[target_feature(enable = "avx512f,avx512vl,avx2,popcnt")]
fn turns(slots: &[u32; SLOTS], states: &mut [u32; LANES], words: &[[u8; 2]], symbols: &mut [u8]) -> (usize, usize) {
    // SAFETY: there are 32 states.
    let mut x: [__m256i; 4] =
        std::array::from_fn(|part| unsafe { _mm256_loadu_si256(states[8 * part..].as_ptr().cast()) });
    let (mut n_symbols, mut n_words) = (0, 0);
    for turn in symbols.chunks_exact_mut(LANES) {
        if n_words + LANES > words.len() {
            break;
        }
        let mut found = [_mm256_setzero_si256(); 4];
        for part in 0..4 {
            let entry = entries(slots, x[part]);
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
            n_words += low.count_ones() as usize;
        }
        // Packing works on halves of registers: symbols 0-3, 8-11, 16-19, 24-27, then the rest.
        let halves =
            _mm256_packus_epi16(_mm256_packus_epi32(found[0], found[1]), _mm256_packus_epi32(found[2], found[3]));
        let ordered = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: a turn has 32 symbols.
        unsafe { _mm256_storeu_si256(turn.as_mut_ptr().cast(), ordered) };
        n_symbols += LANES;
    }
    for (part, x) in x.iter().enumerate() {
        // SAFETY: there are 32 states.
        unsafe { _mm256_storeu_si256(states[8 * part..].as_mut_ptr().cast(), *x) };
    }
    (n_symbols, n_words)
}

/// Returns the table entry for the slot of each state.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,popcnt")]
fn entries(slots: &[u32; SLOTS], x: __m256i) -> __m256i {
    let slot = _mm256_and_si256(x, _mm256_set1_epi32(SLOTS as i32 - 1));
    _mm256_set_m128i(four(slots, _mm256_extracti128_si256::<1>(slot)), four(slots, _mm256_castsi256_si128(slot)))
}

/// Returns the entries of four slots. The slot numbers are extracted two at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx2,popcnt")]
fn four(slots: &[u32; SLOTS], slot: __m128i) -> __m128i {
    let (low, high) = (_mm_cvtsi128_si64(slot) as u64, _mm_extract_epi64::<1>(slot) as u64);
    let entry = |slot: u64| slots[slot as usize % SLOTS] as i32;
    _mm_setr_epi32(entry(low), entry(low >> 32), entry(high), entry(high >> 32))
}
