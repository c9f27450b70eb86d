//! AVX-512 versions: the plain loops compiled for wider registers, and masks, which the compiler does not find.
#![allow(unsafe_code)]

use super::scalar;
use crate::{Affine, Grid};
use std::arch::x86_64::*;

const MAGNITUDE: i32 = 0x7fff_ffff;

/// Whether the processor has every extension that this module is compiled for. The answer is cached by the standard
/// library.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
}

/// Safe entries; to be called only where [`is_available`] said so.
pub(super) mod safe {
    use super::*;

    macro_rules! entries {
        ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
            $(pub(in super::super) fn $name($($arg: $type),*) $(-> $out)? {
                // SAFETY: the dispatcher calls this only after `is_available` found every feature named in
                // `#[target_feature]` of the functions below.
                unsafe { super::$name($($arg),*) }
            })*
        };
    }

    entries! {
        keep_above(scores: &[f32], threshold: u32, drop_ties: &mut usize, bits: &mut [u8]) -> usize;
        count_below(scores: &[f32], threshold: u32) -> (usize, usize);
        nonzero_bits(values: &[f32], bits: &mut [u8]) -> usize;
        copy_kept(from: &[f32], bits: &[u8], to: &mut [f32]);
        max_magnitude(values: &[f32]) -> u32;
        min_max(values: &[f32]) -> (f32, f32);
        quantize(values: &[f32], affine: Affine, grid: Grid, codes: &mut [i8]);
        dequantize(codes: &[i8], affine: Affine, values: &mut [f32]);
        compress8(values: &[u8], bits: &[u8], out: &mut Vec<u8>);
        compress32(values: &[u8], bits: &[u8], out: &mut Vec<u8>);
        expand8(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize;
        error_sums(original: &[f32], simulated: &[f32]) -> [f64; 4];
    }
}

/// Compiles the plain loop for AVX-512.
macro_rules! widened {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        $(#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $name($($arg: $type),*) $(-> $out)? {
            scalar::$name($($arg),*)
        })*
    };
}

widened! {
    max_magnitude(values: &[f32]) -> u32;
    min_max(values: &[f32]) -> (f32, f32);
    quantize(values: &[f32], affine: Affine, grid: Grid, codes: &mut [i8]);
    dequantize(codes: &[i8], affine: Affine, values: &mut [f32]);
    error_sums(original: &[f32], simulated: &[f32]) -> [f64; 4];
}

#[target_feature(enable = "avx512f")]
fn load(values: &[f32; 16]) -> __m512i {
    // SAFETY: the array is 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// Calls `step(index of 16, values)` for whole vectors and returns where the rest starts.
macro_rules! for_each_vector {
    ($values:expr, |$i:ident, $vector:ident| $body:block) => {{
        let (whole, rest) = $values.as_chunks::<16>();
        for ($i, $vector) in whole.iter().enumerate() {
            $body
        }
        $values.len() - rest.len()
    }};
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
fn keep_above(scores: &[f32], threshold: u32, drop_ties: &mut usize, bits: &mut [u8]) -> usize {
    let (limit, magnitude) = (_mm512_set1_epi32(threshold as i32), _mm512_set1_epi32(MAGNITUDE));
    let mut n_kept = 0;
    let done = for_each_vector!(scores, |i, vector| {
        let keys = _mm512_and_si512(load(vector), magnitude);
        let mut keep = _mm512_cmpge_epu32_mask(keys, limit);
        if *drop_ties > 0 {
            let mut ties = _mm512_cmpeq_epu32_mask(keys, limit);
            while ties != 0 && *drop_ties > 0 {
                let lowest = ties & ties.wrapping_neg();
                keep ^= lowest;
                ties ^= lowest;
                *drop_ties -= 1;
            }
        }
        n_kept += keep.count_ones() as usize;
        bits[2 * i..2 * i + 2].copy_from_slice(&keep.to_le_bytes());
    });
    n_kept + scalar::keep_above(&scores[done..], threshold, drop_ties, &mut bits[done / 8..])
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
fn count_below(scores: &[f32], threshold: u32) -> (usize, usize) {
    let (limit, magnitude) = (_mm512_set1_epi32(threshold as i32), _mm512_set1_epi32(MAGNITUDE));
    let (mut below, mut equal) = (0, 0);
    let done = for_each_vector!(scores, |_i, vector| {
        let keys = _mm512_and_si512(load(vector), magnitude);
        below += _mm512_cmplt_epu32_mask(keys, limit).count_ones() as usize;
        equal += _mm512_cmpeq_epu32_mask(keys, limit).count_ones() as usize;
    });
    let rest = scalar::count_below(&scores[done..], threshold);
    (below + rest.0, equal + rest.1)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
fn nonzero_bits(values: &[f32], bits: &mut [u8]) -> usize {
    let mut n = 0;
    let done = for_each_vector!(values, |i, vector| {
        let mask = _mm512_test_epi32_mask(load(vector), load(vector));
        n += mask.count_ones() as usize;
        bits[2 * i..2 * i + 2].copy_from_slice(&mask.to_le_bytes());
    });
    n + scalar::nonzero_bits(&values[done..], &mut bits[done / 8..])
}

#[target_feature(enable = "avx512f")]
fn copy_kept(from: &[f32], bits: &[u8], to: &mut [f32]) {
    let n = from.len().min(to.len());
    let (from, to) = (&from[..n], &mut to[..n]);
    let done = for_each_vector!(from, |i, vector| {
        let mask = u16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]);
        let kept = _mm512_maskz_mov_epi32(mask, load(vector));
        let target = &mut to[16 * i..16 * i + 16];
        // SAFETY: `target` is 64 writable bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), kept) };
    });
    scalar::copy_kept(&from[done..], &bits[done / 8..], &mut to[done..]);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
fn compress8(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
    let (whole, rest) = values.as_chunks::<64>();
    out.reserve(values.len() + 64);
    let mut len = out.len();
    for (i, vector) in whole.iter().enumerate() {
        let Some(mask) = bits[8 * i..].first_chunk::<8>() else { break };
        let mask = u64::from_le_bytes(*mask);
        // SAFETY: `vector` is 64 readable bytes. At most `values.len()` bytes are appended in all and 64 more were
        // reserved, so the 64 bytes written at `len` lie inside the vector's capacity; the first
        // `count_ones` of them are initialised by this store before the length below covers them.
        unsafe {
            let packed = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(vector.as_ptr().cast()));
            _mm512_storeu_si512(out.as_mut_ptr().add(len).cast(), packed);
            len += mask.count_ones() as usize;
            out.set_len(len);
        }
    }
    scalar::compress8(rest, &bits[whole.len() * 8..], out);
}

#[target_feature(enable = "avx512f,popcnt")]
fn compress32(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
    let (whole, rest) = values.as_chunks::<64>();
    out.reserve(values.len() + 64);
    let mut len = out.len();
    for (i, vector) in whole.iter().enumerate() {
        let mask = u16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]);
        // SAFETY: as in `compress8`, with 4 bytes for each set bit.
        unsafe {
            let packed = _mm512_maskz_compress_epi32(mask, _mm512_loadu_si512(vector.as_ptr().cast()));
            _mm512_storeu_si512(out.as_mut_ptr().add(len).cast(), packed);
            len += 4 * mask.count_ones() as usize;
            out.set_len(len);
        }
    }
    scalar::compress32(rest, &bits[whole.len() * 2..], out);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
fn expand8(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize {
    let (whole, rest) = out.as_chunks_mut::<64>();
    let (mut used, mut done) = (0, 0);
    for (i, vector) in whole.iter_mut().enumerate() {
        let (Some(mask), Some(next)) = (bits[8 * i..].first_chunk::<8>(), packed[used..].first_chunk::<64>()) else {
            break;
        };
        let mask = u64::from_le_bytes(*mask);
        // SAFETY: `next` is 64 readable bytes and `vector` 64 writable ones.
        unsafe {
            let spread = _mm512_maskz_expand_epi8(mask, _mm512_loadu_si512(next.as_ptr().cast()));
            _mm512_storeu_si512(vector.as_mut_ptr().cast(), spread);
        }
        used += mask.count_ones() as usize;
        done = i + 1;
    }
    // Near the end fewer than 64 packed bytes are left to load.
    for (i, vector) in whole.iter_mut().enumerate().skip(done) {
        used += scalar::expand8(&packed[used..], &bits[8 * i..], vector);
    }
    used + scalar::expand8(&packed[used..], &bits[whole.len() * 8..], rest)
}
