//! Decodes with four states per register.
#![allow(unsafe_code)]

use super::turns::Slots;
use crate::entropy::{LANES, LEAST, PRECISION, SLOTS};
use std::arch::aarch64::*;

/// For each set of lanes, the bytes of the next words that each lane of the set reads; other lanes read none.
static TAKES: [[u8; 16]; 16] = takes();

const fn takes() -> [[u8; 16]; 16] {
    let mut all = [[0xff; 16]; 16];
    let mut set = 0;
    while set < 16 {
        let (mut lane, mut byte) = (0, 0);
        while lane < 4 {
            if set >> lane & 1 == 1 {
                (all[set][4 * lane], all[set][4 * lane + 1]) = (byte, byte + 1);
                byte += 2;
            }
            lane += 1;
        }
        set += 1;
    }
    all
}

/// Decodes while a whole turn of symbols and its words are certain to be available. Returns the number of
/// symbols and words.
pub(super) fn decode(
    slots: &Slots,
    states: &mut [u32; LANES],
    words: &[[u8; 2]],
    symbols: &mut [u8],
) -> (usize, usize) {
    // SAFETY: every processor of this architecture has the instructions.
    unsafe { turns(slots, states, words, symbols) }
}

#[target_feature(enable = "neon")]
fn turns(slots: &Slots, states: &mut [u32; LANES], words: &[[u8; 2]], symbols: &mut [u8]) -> (usize, usize) {
    // SAFETY: there are 32 states.
    let mut x: [uint32x4_t; 8] = std::array::from_fn(|part| unsafe { vld1q_u32(states[4 * part..].as_ptr()) });
    let (mut n_symbols, mut n_words) = (0, 0);
    // One bit for the position of each lane in the set, and 0x100 to count the lanes. SAFETY: the array has
    // four numbers.
    let places = unsafe { vld1q_u32([0x101, 0x102, 0x104, 0x108].as_ptr()) };
    for turn in symbols.chunks_exact_mut(LANES) {
        if n_words + LANES > words.len() {
            break;
        }
        let mut found = [vdupq_n_u8(0); 8];
        for part in 0..8 {
            let entry = entries(slots, x[part]);
            found[part] = vreinterpretq_u8_u32(entry);
            let into = vandq_u32(vshrq_n_u32::<8>(entry), vdupq_n_u32(0xfff));
            let next = vmlaq_u32(into, vshrq_n_u32::<20>(entry), vshrq_n_u32::<{ PRECISION as i32 }>(x[part]));
            let is_low = vcltq_u32(next, vdupq_n_u32(LEAST));
            let set = vaddvq_u32(vandq_u32(is_low, places));
            // SAFETY: at least 4 words are left, because the turn began with 32 and each earlier part read at
            // most 4. A table row has 16 bytes.
            let (some, takes) =
                unsafe { (vld1_u8(words.as_ptr().add(n_words).cast()), vld1q_u8(TAKES[set as usize % 16].as_ptr())) };
            let read = vreinterpretq_u32_u8(vqtbl1q_u8(vcombine_u8(some, vdup_n_u8(0)), takes));
            x[part] = vbslq_u32(is_low, vsliq_n_u32::<16>(read, next), next);
            n_words += (set >> 8) as usize;
        }
        for (found, out) in found.chunks_exact(4).zip(turn.chunks_exact_mut(16)) {
            let halves = [lowest(found[0], found[1]), lowest(found[2], found[3])];
            // SAFETY: `out` has 16 symbols.
            unsafe { vst1q_u8(out.as_mut_ptr(), vuzp1q_u8(halves[0], halves[1])) };
        }
        n_symbols += LANES;
    }
    for (part, x) in x.iter().enumerate() {
        // SAFETY: there are 32 states.
        unsafe { vst1q_u32(states[4 * part..].as_mut_ptr(), *x) };
    }
    (n_symbols, n_words)
}

/// Returns the table entry for the slot of each state. Two states at a time are extracted from the register.
#[inline]
#[target_feature(enable = "neon")]
fn entries(slots: &Slots, x: uint32x4_t) -> uint32x4_t {
    let pairs = vreinterpretq_u64_u32(x);
    let (low, high) = (vgetq_lane_u64::<0>(pairs), vgetq_lane_u64::<1>(pairs));
    let entry = |state: u64| slots[state as usize % SLOTS];
    let first = vdupq_n_u32(entry(low));
    let second = vsetq_lane_u32::<1>(entry(low >> 32), first);
    let third = vsetq_lane_u32::<2>(entry(high), second);
    vsetq_lane_u32::<3>(entry(high >> 32), third)
}

/// Returns the even bytes of both vectors.
#[inline]
#[target_feature(enable = "neon")]
fn lowest(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)))
}
