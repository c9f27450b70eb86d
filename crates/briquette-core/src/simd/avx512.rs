//! AVX-512 versions: the plain loops compiled for wider registers, and masked instructions that compilers do
//! not generate.
#![allow(unsafe_code)]

use super::{RANGES, XXH3_BLOCK, XXH3_SECRET, scalar};
use crate::{Affine, Grid};
use std::arch::x86_64::*;

const MAGNITUDE: i32 = 0x7fff_ffff;
const MAGNITUDE_BF16: i16 = 0x7fff;

/// Safe entry points, called only if [`has_avx512_bytes`](super::isa::has_avx512_bytes) returned true.
pub(super) mod safe {
    use super::*;

    macro_rules! entries {
        ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
            $(pub(in super::super) fn $name($($arg: $type),*) $(-> $out)? {
                // SAFETY: the dispatcher calls this only after `has_avx512_bytes` found every feature in the
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
        error_sums(original: &[f32], fake_quantized: &[f32]) -> [f64; 4];
        squared_error(values: &[f32], affine: Affine, grid: Grid) -> f64;
        near_squared_errors(values: &[f32], affines: &[Affine; RANGES], grid: Grid) -> [f64; RANGES];
        half_quadratic_sums(values: &[f32], affine: Affine, grid: Grid, beta: f32) -> [f64; 3];
        compress16(values: &[u8], bits: &[u8], out: &mut Vec<u8>);
        expand16(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize;
        expand32(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize;
        keep16(from: &[u8], bits: &[u8], to: &mut [u8]);
        collect_between(scores: &[f32], low: u32, high: u32, out: &mut Vec<u32>) -> usize;
        collect_between_bf16(halves: &[u16], low: u32, high: u32, out: &mut Vec<u32>) -> usize;
        widen_bf16(halves: &[u16], values: &mut [f32]);
        xxh3_blocks(accumulators: &mut [u64; 8], blocks: &[u8], secret: &[u8; XXH3_SECRET]);
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
    error_sums(original: &[f32], fake_quantized: &[f32]) -> [f64; 4];
    squared_error(values: &[f32], affine: Affine, grid: Grid) -> f64;
    near_squared_errors(values: &[f32], affines: &[Affine; RANGES], grid: Grid) -> [f64; RANGES];
    half_quadratic_sums(values: &[f32], affine: Affine, grid: Grid, beta: f32) -> [f64; 3];
    widen_bf16(halves: &[u16], values: &mut [f32]);
}

#[target_feature(enable = "avx512f")]
fn load(values: &[f32; 16]) -> __m512i {
    // SAFETY: the array is 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// Calls `step(index of 16, values)` for whole vectors and returns the start of the rest.
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

/// `compressW`: appends the elements whose bit is set. `$mask` reads the mask bits of a vector of 64 bytes.
macro_rules! compress {
    ($name:ident, $mask:ty, $width:literal, $intrinsic:ident) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
        fn $name(values: &[u8], bits: &[u8], out: &mut Vec<u8>) {
            const MASK_BYTES: usize = size_of::<$mask>();
            let (whole, rest) = values.as_chunks::<64>();
            out.reserve(values.len() + 64);
            let mut len = out.len();
            for (vector, mask) in whole.iter().zip(bits.as_chunks::<MASK_BYTES>().0) {
                let mask = <$mask>::from_le_bytes(*mask);
                // SAFETY: `vector` is 64 readable bytes. At most `values.len()` bytes are appended in all and
                // 64 more were reserved, so the 64 bytes written at `len` are within the capacity. The store
                // initialises the `count_ones` elements that the length then covers.
                unsafe {
                    let packed = $intrinsic(mask, _mm512_loadu_si512(vector.as_ptr().cast()));
                    _mm512_storeu_si512(out.as_mut_ptr().add(len).cast(), packed);
                    len += $width * mask.count_ones() as usize;
                    out.set_len(len);
                }
            }
            scalar::$name(rest, &bits[whole.len() * MASK_BYTES..], out);
        }
    };
}

compress!(compress8, u64, 1, _mm512_maskz_compress_epi8);
compress!(compress16, u32, 2, _mm512_maskz_compress_epi16);
compress!(compress32, u16, 4, _mm512_maskz_compress_epi32);

/// `expandW`: spreads packed elements over the set bits.
macro_rules! expand {
    ($name:ident, $mask:ty, $width:literal, $intrinsic:ident) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
        fn $name(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize {
            const MASK_BYTES: usize = size_of::<$mask>();
            let (whole, rest) = out.as_chunks_mut::<64>();
            let n_whole = whole.len();
            let mut used = 0;
            for (vector, mask) in whole.iter_mut().zip(bits.as_chunks::<MASK_BYTES>().0) {
                let next = &packed[$width * used..];
                let Some(next) = next.first_chunk::<64>() else {
                    // Fewer than 64 packed bytes are left near the end.
                    used += scalar::$name(next, mask, vector);
                    continue;
                };
                let mask = <$mask>::from_le_bytes(*mask);
                // SAFETY: `next` is 64 readable bytes and `vector` 64 writable ones.
                unsafe {
                    let spread = $intrinsic(mask, _mm512_loadu_si512(next.as_ptr().cast()));
                    _mm512_storeu_si512(vector.as_mut_ptr().cast(), spread);
                }
                used += mask.count_ones() as usize;
            }
            used + scalar::$name(&packed[$width * used..], &bits[n_whole * MASK_BYTES..], rest)
        }
    };
}

expand!(expand8, u64, 1, _mm512_maskz_expand_epi8);
expand!(expand16, u32, 2, _mm512_maskz_expand_epi16);
expand!(expand32, u16, 4, _mm512_maskz_expand_epi32);

#[target_feature(enable = "avx512f,avx512bw")]
fn keep16(from: &[u8], bits: &[u8], to: &mut [u8]) {
    let (whole, rest) = from.as_chunks::<64>();
    let done = 64 * whole.len();
    for ((vector, mask), to) in whole.iter().zip(bits.as_chunks::<4>().0).zip(to.as_chunks_mut::<64>().0) {
        // SAFETY: `vector` is 64 readable bytes and `to` 64 writable ones.
        unsafe {
            let kept = _mm512_maskz_mov_epi16(u32::from_le_bytes(*mask), _mm512_loadu_si512(vector.as_ptr().cast()));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), kept);
        }
    }
    scalar::keep16(rest, &bits[whole.len() * 4..], &mut to[done..]);
}

/// Vectors stored between two calls of `reserve`.
const VECTORS_PER_RESERVE: usize = 64;
/// The distance in bytes for prefetching scores; the loop is too long for the hardware prefetcher.
const BYTES_AHEAD: usize = 2048;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
fn collect_between(scores: &[f32], low: u32, high: u32, out: &mut Vec<u32>) -> usize {
    let (low_limit, high_limit) = (_mm512_set1_epi32(low as i32), _mm512_set1_epi32(high as i32));
    let (whole, rest) = scores.as_chunks::<16>();
    let mut below = 0;
    for vectors in whole.chunks(VECTORS_PER_RESERVE) {
        out.reserve(16 * vectors.len());
        let mut len = out.len();
        // Every vector is stored, even if nothing is kept: a branch would be mispredicted half of the time.
        for vector in vectors {
            _mm_prefetch::<_MM_HINT_T0>(vector.as_ptr().cast::<i8>().wrapping_add(BYTES_AHEAD));
            let keys = _mm512_and_si512(load(vector), _mm512_set1_epi32(MAGNITUDE));
            let is_below = _mm512_cmplt_epu32_mask(keys, low_limit);
            let is_between = _mm512_cmple_epu32_mask(keys, high_limit) & !is_below;
            below += is_below.count_ones() as usize;
            // SAFETY: capacity for 16 elements per vector was reserved and earlier vectors kept at most 16
            // each, so the 16 elements at `len` are within the capacity.
            unsafe {
                let packed = _mm512_maskz_compress_epi32(is_between, keys);
                _mm512_storeu_si512(out.as_mut_ptr().add(len).cast(), packed);
            }
            len += is_between.count_ones() as usize;
        }
        // SAFETY: each store initialised the elements that it added to `len`.
        unsafe { out.set_len(len) };
    }
    below + scalar::collect_between(rest, low, high, out)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
fn collect_between_bf16(halves: &[u16], low: u32, high: u32, out: &mut Vec<u32>) -> usize {
    // `key << 16 < low` means `key < ceil(low / 2^16)`, and `key << 16 <= high` means `key <= floor(high /
    // 2^16)`.
    let low_limit = _mm512_set1_epi16(low.div_ceil(1 << 16) as u16 as i16);
    let high_limit = _mm512_set1_epi16((high >> 16) as i16);
    let (whole, rest) = halves.as_chunks::<32>();
    let mut below = 0;
    for vectors in whole.chunks(VECTORS_PER_RESERVE) {
        out.reserve(32 * vectors.len());
        let mut len = out.len();
        for vector in vectors {
            _mm_prefetch::<_MM_HINT_T0>(vector.as_ptr().cast::<i8>().wrapping_add(BYTES_AHEAD));
            // SAFETY: the array is 64 readable bytes; the load needs no alignment.
            let vector = unsafe { _mm512_loadu_si512(vector.as_ptr().cast()) };
            let keys = _mm512_and_si512(vector, _mm512_set1_epi16(MAGNITUDE_BF16));
            let is_below = _mm512_cmplt_epu16_mask(keys, low_limit);
            let is_between = _mm512_cmple_epu16_mask(keys, high_limit) & !is_below;
            below += is_below.count_ones() as usize;
            let packed = _mm512_maskz_compress_epi16(is_between, keys);
            let first = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(packed)));
            let second = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(packed)));
            // SAFETY: as in `collect_between`, with 32 elements a vector.
            unsafe {
                _mm512_storeu_si512(out.as_mut_ptr().add(len).cast(), first);
                _mm512_storeu_si512(out.as_mut_ptr().add(len + 16).cast(), second);
            }
            len += is_between.count_ones() as usize;
        }
        // SAFETY: each pair of stores initialised the elements that it added to `len`.
        unsafe { out.set_len(len) };
    }
    below + scalar::collect_between_bf16(rest, low, high, out)
}

#[target_feature(enable = "avx512f")]
fn load_bytes(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array is 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512dq")]
fn xxh3_blocks(accumulators: &mut [u64; 8], blocks: &[u8], secret: &[u8; XXH3_SECRET]) {
    const N_STRIPES: usize = XXH3_BLOCK / 64;
    let part = |start: usize| secret[start..].first_chunk().map_or(_mm512_setzero_si512(), |part| load_bytes(part));
    let secrets: [__m512i; N_STRIPES] = std::array::from_fn(|i| part(8 * i));
    let (last_secret, prime) = (part(XXH3_SECRET - 64), _mm512_set1_epi64(0x9e37_79b1));
    // SAFETY: the array is 64 readable bytes; the load needs no alignment.
    let mut sums = unsafe { _mm512_loadu_si512(accumulators.as_ptr().cast()) };
    for block in blocks.as_chunks::<XXH3_BLOCK>().0 {
        for (stripe, secret) in block.as_chunks::<64>().0.iter().zip(&secrets) {
            let lanes = load_bytes(stripe);
            let keys = _mm512_xor_si512(lanes, *secret);
            let products = _mm512_mul_epu32(keys, _mm512_srli_epi64::<32>(keys));
            let neighbours = _mm512_shuffle_epi32::<0b01_00_11_10>(lanes);
            sums = _mm512_add_epi64(sums, _mm512_add_epi64(products, neighbours));
        }
        let scrambled = _mm512_xor_si512(_mm512_xor_si512(sums, _mm512_srli_epi64::<47>(sums)), last_secret);
        sums = _mm512_mullo_epi64(scrambled, prime);
    }
    // SAFETY: the array is 64 writable bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(accumulators.as_mut_ptr().cast(), sums) };
}
