//! The inner loops: portable code that the compiler vectorises, with AVX-512 versions where it cannot.
//!
//! The code in [`mod@scalar`] defines every function; the fast versions are tested against it.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod fits;
mod isa;
mod level;
pub mod scalar;
mod xxh3;

use crate::{Affine, Grid};
pub use fits::RANGES;
pub use isa::Isa;
#[cfg(target_arch = "x86_64")]
pub(crate) use isa::{has_avx2_popcnt, has_avx512_words};
#[cfg(target_arch = "x86_64")]
pub use isa::{has_byte_expansion, has_fma};
pub use level::{SimdLevel, active_level};
pub use xxh3::{XXH3_BLOCK, XXH3_SECRET};

/// Calls the AVX-512 version if the processor supports it, otherwise the portable version.
macro_rules! dispatch {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {
        $(#[$doc])*
        pub fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            if isa::has_avx512_bytes() {
                return avx512::safe::$name($($arg),*);
            }
            scalar::$name($($arg),*)
        }
    };
}

dispatch! {
    /// Sets bit `i` of `bits` if the magnitude bits of `scores[i]` are above `threshold`, and returns the
    /// number of kept scores.
    ///
    /// Of scores equal to `threshold`, the first `drop_ties` are dropped and the rest kept. `drop_ties` is
    /// decremented.
    keep_above(scores: &[f32], threshold: u32, drop_ties: &mut usize, bits: &mut [u8]) -> usize
}
dispatch! {
    /// Returns the number of scores with magnitude bits below `threshold`, and equal to it.
    count_below(scores: &[f32], threshold: u32) -> (usize, usize)
}
dispatch! {
    /// Sets bit `i` if `values[i]` has any bit set, that is, if it is not +0.0. Returns the number of such
    /// values.
    nonzero_bits(values: &[f32], bits: &mut [u8]) -> usize
}
dispatch! {
    /// Copies `from` to `to`, with +0.0 if the bit is clear.
    copy_kept(from: &[f32], bits: &[u8], to: &mut [f32])
}
dispatch! {
    /// Returns the bits of the largest magnitude, at least `0x7f80_0000` if a value is infinite or NaN.
    max_magnitude(values: &[f32]) -> u32
}
dispatch! {
    /// Returns the smallest and largest of finite values; `(0, 0)` for an empty slice.
    min_max(values: &[f32]) -> (f32, f32)
}
dispatch! {
    /// `codes[i] = affine.quantize(values[i])` for finite values.
    quantize(values: &[f32], affine: Affine, grid: Grid, codes: &mut [i8])
}
dispatch! {
    /// `values[i] = (codes[i] - zero) * scale`.
    dequantize(codes: &[i8], affine: Affine, values: &mut [f32])
}
dispatch! {
    /// Appends the bytes whose bit is set.
    compress8(values: &[u8], bits: &[u8], out: &mut Vec<u8>)
}
dispatch! {
    /// Appends the 4-byte elements whose bit is set.
    compress32(values: &[u8], bits: &[u8], out: &mut Vec<u8>)
}
dispatch! {
    /// Spreads `packed` over the set bits of `out`, with 0 elsewhere. Returns the number of packed bytes used.
    expand8(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize
}
dispatch! {
    /// Appends the 2-byte elements whose bit is set.
    compress16(values: &[u8], bits: &[u8], out: &mut Vec<u8>)
}
dispatch! {
    /// Like [`expand8`], for elements of 2 bytes.
    expand16(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize
}
dispatch! {
    /// Like [`expand8`], for elements of 4 bytes.
    expand32(packed: &[u8], bits: &[u8], out: &mut [u8]) -> usize
}
dispatch! {
    /// Copies the 2-byte elements of `from` to `to`, with 0 if the bit is clear.
    keep16(from: &[u8], bits: &[u8], to: &mut [u8])
}
dispatch! {
    /// Appends the magnitude bits of scores from `low` to `high`, inclusive. Returns the number of scores below
    /// `low`.
    collect_between(scores: &[f32], low: u32, high: u32, out: &mut Vec<u32>) -> usize
}
dispatch! {
    /// Like [`collect_between`] for the bits of bfloat16 scores, with the magnitude bits of the equal f32.
    collect_between_bf16(halves: &[u16], low: u32, high: u32, out: &mut Vec<u32>) -> usize
}
dispatch! {
    /// Widens bfloat16 bits to f32.
    widen_bf16(halves: &[u16], values: &mut [f32])
}
dispatch! {
    /// Returns `[Σ w², Σ (w - v)², Σ w·v, Σ v²]` in f64 over blocks of f32 sums.
    error_sums(original: &[f32], fake_quantized: &[f32]) -> [f64; 4]
}

dispatch! {
    /// Returns `Σ (w - v)²` in f64.
    squared_error(values: &[f32], affine: Affine, grid: Grid) -> f64
}
dispatch! {
    /// Returns `Σ (w - v)²` for each of sixteen scales and zero points, to about four digits.
    ///
    /// Computes in f32 and multiplies by the inverse scale where [`squared_error`] divides, so that a value
    /// half way between two codes may get either.
    near_squared_errors(values: &[f32], affines: &[Affine; RANGES], grid: Grid) -> [f64; RANGES]
}
dispatch! {
    /// Returns `[Σ |w - v|^0.7, Σ q·t, Σ q²]` to about four digits, for half-quadratic quantization.
    ///
    /// `q` is the code relative to the zero point. `t` is the value minus the part of its error beyond `|w -
    /// v|^-0.3 / β`, which is attributed to outliers. Computes in f32 and multiplies by the inverse scale. The
    /// scale and its inverse must be normal numbers.
    half_quadratic_sums(values: &[f32], affine: Affine, grid: Grid, beta: f32) -> [f64; 3]
}

dispatch! {
    /// Adds whole blocks of [`XXH3_BLOCK`] bytes to the accumulators of xxh3.
    xxh3_blocks(accumulators: &mut [u64; 8], blocks: &[u8], secret: &[u8; XXH3_SECRET])
}

/// Appends the `width`-byte elements whose bit is set.
pub fn compress(values: &[u8], width: usize, bits: &[u8], out: &mut Vec<u8>) {
    match width {
        1 => compress8(values, bits, out),
        2 => compress16(values, bits, out),
        4 => compress32(values, bits, out),
        _ => scalar::compress(values, width, bits, out),
    }
}

/// Spreads the `width`-byte elements of `packed` over the set bits of `out`, with 0 elsewhere.
///
/// Returns the number of packed elements used.
pub fn expand(packed: &[u8], width: usize, bits: &[u8], out: &mut [u8]) -> usize {
    match width {
        1 => expand8(packed, bits, out),
        2 => expand16(packed, bits, out),
        4 => expand32(packed, bits, out),
        _ => scalar::expand(packed, width, bits, out),
    }
}

/// Copies the `width`-byte elements of `from` to `to`, with 0 if the bit is clear.
pub fn keep(from: &[u8], width: usize, bits: &[u8], to: &mut [u8]) {
    match width {
        2 => keep16(from, bits, to),
        _ => scalar::keep(from, width, bits, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GridKind, bits};
    use proptest::prelude::*;

    fn any_values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            4 => -3.0_f32..3.0,
            1 => Just(0.0), 1 => Just(-0.0), 1 => Just(0.5), 1 => Just(-0.5), 1 => Just(1e-42), 1 => Just(3e38),
        ];
        prop::collection::vec(value, 0..200)
    }

    fn bitmask(seed: u64, n: usize) -> Vec<u8> {
        let mut bits = vec![0_u8; n.div_ceil(8)];
        for i in (0..n).filter(|i| (seed.rotate_left(*i as u32) ^ (*i as u64 * 0x9e37)) & 3 != 0) {
            bits[i / 8] |= 1 << (i % 8);
        }
        bits
    }

    proptest! {
        #[test]
        fn masks_agree_with_the_reference(values in any_values(), threshold in any::<f32>(), ties in 0_usize..5) {
            for key in [threshold.to_bits() & 0x7fff_ffff, 0.5_f32.to_bits(), 0] {
                let (mut fast, mut slow) = (vec![0; values.len().div_ceil(8)], vec![0; values.len().div_ceil(8)]);
                let (mut fast_ties, mut slow_ties) = (ties, ties);
                let kept = keep_above(&values, key, &mut fast_ties, &mut fast);
                prop_assert_eq!(kept, scalar::keep_above(&values, key, &mut slow_ties, &mut slow));
                prop_assert_eq!((&fast, fast_ties), (&slow, slow_ties));
                prop_assert_eq!(kept, bits::count_ones(&fast));
                prop_assert_eq!(count_below(&values, key), scalar::count_below(&values, key));
            }
            let (mut fast, mut slow) = (vec![0; values.len().div_ceil(8)], vec![0; values.len().div_ceil(8)]);
            prop_assert_eq!(nonzero_bits(&values, &mut fast), scalar::nonzero_bits(&values, &mut slow));
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn scores_in_a_range_are_collected(values in any_values(), a in 0.0_f32..3.0, b in 0.0_f32..3.0) {
            let (low, high) = (a.min(b).to_bits(), a.max(b).to_bits());
            let (mut fast, mut slow) = (vec![1], vec![1]);
            let below = collect_between(&values, low, high, &mut fast);
            prop_assert_eq!(below, scalar::collect_between(&values, low, high, &mut slow));
            prop_assert_eq!(fast, slow);
            let halves: Vec<u16> = values.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
            let widened: Vec<f32> = halves.iter().map(|half| f32::from_bits(u32::from(*half) << 16)).collect();
            let (mut fast, mut slow) = (vec![1], vec![1]);
            let below = collect_between_bf16(&halves, low, high, &mut fast);
            prop_assert_eq!(below, scalar::collect_between(&widened, low, high, &mut slow));
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn bfloat16_bits_become_the_high_bits_of_f32(halves in prop::collection::vec(any::<u16>(), 0..100)) {
            let mut values = vec![0.0; halves.len()];
            widen_bf16(&halves, &mut values);
            for (value, half) in values.iter().zip(halves) {
                let expected = half::bf16::from_bits(half).to_f32();
                prop_assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan());
            }
        }

        #[test]
        fn numbers_agree_with_the_reference(values in any_values(), seed in any::<u64>(), n_bits in 2_u8..=8) {
            prop_assert_eq!(max_magnitude(&values), scalar::max_magnitude(&values));
            prop_assert_eq!(min_max(&values), scalar::min_max(&values));
            let bits = bitmask(seed, values.len());
            let (mut fast, mut slow) = (vec![9.0; values.len()], vec![9.0; values.len()]);
            copy_kept(&values, &bits, &mut fast);
            scalar::copy_kept(&values, &bits, &mut slow);
            prop_assert_eq!(bytemuck::cast_slice::<f32, u32>(&fast), bytemuck::cast_slice::<f32, u32>(&slow));
            for kind in [GridKind::Symmetric, GridKind::SymmetricFull, GridKind::Asymmetric] {
                let grid = Grid::new(n_bits, kind).unwrap();
                let affine = Affine::over(-2.0, 1.0, grid);
                let mut codes = vec![0; values.len()];
                quantize(&values, affine, grid, &mut codes);
                let reference: Vec<i8> = values.iter().map(|&value| affine.quantize(value, grid)).collect();
                prop_assert_eq!(&codes, &reference);
                dequantize(&codes, affine, &mut fast);
                let reference: Vec<f32> = codes.iter().map(|&code| affine.dequantize(code)).collect();
                prop_assert_eq!(bytemuck::cast_slice::<f32, u32>(&fast), bytemuck::cast_slice::<f32, u32>(&reference));
                prop_assert_eq!(error_sums(&values, &fast), scalar::error_sums(&values, &fast));
            }
        }

        #[test]
        fn hash_blocks_agree_with_the_reference(seed in any::<u64>(), n in 0_usize..4) {
            let bytes: Vec<u8> = (0..n * XXH3_BLOCK).map(|i| (seed.wrapping_mul(i as u64 | 1) >> 17) as u8).collect();
            let secret = std::array::from_fn(|i| (seed >> (i % 57)) as u8);
            let (mut fast, mut slow) = ([seed; 8], [seed; 8]);
            xxh3_blocks(&mut fast, &bytes, &secret);
            scalar::xxh3_blocks(&mut slow, &bytes, &secret);
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn codes_near_ties_equal_the_rounded_quotient(
            scale in prop_oneof![1e-6_f32..10.0, Just(1e-40), Just(3e38), Just(1.0), Just(0.1)],
            codes in prop::collection::vec((-130_i32..130, -3_i32..=3), 0..100),
        ) {
            for (kind, zero) in [(GridKind::Symmetric, 0), (GridKind::Asymmetric, -100)] {
                let (grid, affine) = (Grid::new(8, kind).unwrap(), Affine { scale, zero });
                let half_way = |&(code, ulps): &(i32, i32)| {
                    let tie = ((code as f32 + 0.5) * scale).clamp(f32::MIN, f32::MAX);
                    let moved = f32::from_bits((tie.to_bits() as i32 + ulps) as u32);
                    if moved.is_finite() { moved } else { tie }
                };
                let values: Vec<f32> = codes.iter().map(half_way).collect();
                let mut found = vec![0; values.len()];
                quantize(&values, affine, grid, &mut found);
                let expected: Vec<i8> = values.iter().map(|&value| affine.quantize(value, grid)).collect();
                prop_assert_eq!(&found, &expected);
                scalar::quantize(&values, affine, grid, &mut found);
                prop_assert_eq!(&found, &expected);
            }
        }

        #[test]
        fn compressed_elements_expand_to_the_kept_ones(n in 0_usize..300, seed in any::<u64>()) {
            let bits = bitmask(seed, n);
            for width in [1, 2, 4, 8] {
                let values: Vec<u8> = (0..n * width).map(|i| (i as u64 ^ seed) as u8).collect();
                let (mut fast, mut slow) = (vec![1, 2], vec![1, 2]);
                compress(&values, width, &bits, &mut fast);
                scalar::compress(&values, width, &bits, &mut slow);
                prop_assert_eq!(&fast, &slow);
                let (mut kept, mut reference) = (vec![7; n * width], vec![7; n * width]);
                keep(&values, width, &bits, &mut kept);
                scalar::keep(&values, width, &bits, &mut reference);
                prop_assert_eq!(kept, reference);
                let mut out = vec![7; n * width];
                prop_assert_eq!(expand(&fast[2..], width, &bits, &mut out), bits::count_ones(&bits));
                for i in 0..n {
                    let element = &out[i * width..(i + 1) * width];
                    let expected = if bits::get(&bits, i) { values[i * width..(i + 1) * width].to_vec() } else { vec![0; width] };
                    prop_assert_eq!(element, &expected[..]);
                }
            }
        }
    }
}
