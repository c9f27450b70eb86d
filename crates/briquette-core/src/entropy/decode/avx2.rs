//! Decodes with eight states per register.
#![allow(unsafe_code)]

use super::turns::{Slots, Turns};
use crate::entropy::{LANES, PRECISION, SLOTS};
use std::arch::x86_64::*;

/// For each set of lanes, the index of the next word that each lane of the set reads.
static TAKES: [[u32; 8]; 256] = takes();

const fn takes() -> [[u32; 8]; 256] {
    let mut all = [[0; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut word) = (0, 0);
        while lane < 8 {
            all[set][lane] = word;
            word += (set >> lane & 1) as u32;
            lane += 1;
        }
        set += 1;
    }
    all
}

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

#[target_feature(enable = "avx2,popcnt")]
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
            // A state is below 2^15 if it is 0 after a shift by 15 bits.
            let is_low = _mm256_cmpeq_epi32(_mm256_srli_epi32::<15>(next), _mm256_setzero_si256());
            let set = _mm256_movemask_ps(_mm256_castsi256_ps(is_low)) as u8;
            // SAFETY: at least 8 words are left, because the turn began with 32 and each earlier part read at
            // most 8. A table row has 8 entries.
            let (some, takes) = unsafe {
                let takes = _mm256_loadu_si256(TAKES[usize::from(set)].as_ptr().cast());
                (_mm_loadu_si128(words.as_ptr().add(n_words).cast()), takes)
            };
            let read = _mm256_permutevar8x32_epi32(_mm256_cvtepu16_epi32(some), takes);
            let more = _mm256_or_si256(_mm256_slli_epi32::<16>(next), read);
            x[part] = _mm256_blendv_epi8(next, more, is_low);
            n_words += set.count_ones() as usize;
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

/// Returns where the table of each of eight symbols starts, in bytes: that of odd codes where the state of its column is odd.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn table_of(columns: &[u8; LANES], part: usize) -> __m256i {
    // SAFETY: there are 8 states from each multiple of 8 on.
    let eight = unsafe { _mm_loadl_epi64(columns[8 * part..].as_ptr().cast()) };
    let start = _mm256_slli_epi32::<{ PRECISION as i32 + 2 }>(_mm256_cvtepu8_epi32(eight));
    _mm256_and_si256(start, _mm256_set1_epi32(4 * SLOTS as i32))
}

/// Returns the entry for the slot of each state, in tables that start at these bytes.
///
/// On Zen 4, separate loads take .94 of the time of a gather with one table, and .84 with two.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn entries(slots: &Slots, x: __m256i, tables: __m256i) -> __m256i {
    let slot = _mm256_and_si256(_mm256_slli_epi32::<2>(x), _mm256_set1_epi32(4 * (SLOTS as i32 - 1)));
    let place = _mm256_or_si256(slot, tables);
    _mm256_set_m128i(four(slots, _mm256_extracti128_si256::<1>(place)), four(slots, _mm256_castsi256_si128(place)))
}

/// Returns the entries at four places in bytes. The places are extracted two at a time.
#[inline]
#[target_feature(enable = "avx2")]
fn four(slots: &Slots, place: __m128i) -> __m128i {
    let (low, high) = (_mm_cvtsi128_si64(place) as u64, _mm_extract_epi64::<1>(place) as u64);
    // SAFETY: a place is below 4 · 8,192, the bytes of both tables: 12 bits of a state, and a table that starts at 0 or 4,096.
    let entry = |place: u32| unsafe { slots.as_ptr().byte_add(place as usize).read() as i32 };
    _mm_setr_epi32(entry(low as u32), entry((low >> 32) as u32), entry(high as u32), entry((high >> 32) as u32))
}

/// Replaces the states of 32 columns by those after these codes. See [`next_state`](crate::entropy::trellis::next_state).
#[inline]
#[target_feature(enable = "avx2")]
fn step(columns: &mut [u8; LANES], codes: __m256i) {
    // SAFETY: there are 32 states.
    let states = unsafe { _mm256_loadu_si256(columns.as_ptr().cast()) };
    // Shifts of 16 bits move foreign bits only into the upper bits of a byte.
    let sum = _mm256_xor_si256(
        _mm256_srli_epi16::<1>(codes),
        _mm256_xor_si256(_mm256_srli_epi16::<1>(states), _mm256_srli_epi16::<2>(states)),
    );
    let doubled = _mm256_and_si256(_mm256_add_epi8(states, states), _mm256_set1_epi8(7));
    let next = _mm256_or_si256(doubled, _mm256_and_si256(sum, _mm256_set1_epi8(1)));
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(columns.as_mut_ptr().cast(), next) };
}
