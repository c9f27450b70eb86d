//! f32 loops, written once and compiled for each instruction set.
//!
//! All versions do the same operations in the same order, so they give the same bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;

/// Lanes of sums and maxima, equal on every level so that all levels give the same bits.
pub(crate) const LANES: usize = 16;

/// `Phi(x) = 1/2 + x * p(v)` with `v = 2 x^2 / EDGE^2 - 1`: Chebyshev interpolation, within 1.3e-7 of the exact function.
const PHI: [f32; 15] = [
    0.133_392_56,
    -0.066_518_49,
    0.049_264_085,
    -0.039_589_237,
    0.032_080_93,
    -0.025_295_543,
    0.018_916_473,
    -0.013_195_976,
    0.008_857_538,
    -0.005_830_312,
    0.003_088_024_2,
    -0.001_112_725_9,
    0.000_768_976_1,
    -0.000_758_976_73,
    0.000_272_293_55,
];
/// From this magnitude, `Phi` is 0 or 1 in f32.
const EDGE: f32 = 5.3;
/// `Phi` with fewer terms: `x * Phi(x)` is within 6e-5, a seventieth of a step of 8-bit codes for values up to
/// 1.
const COARSE_PHI: [f32; 9] = [
    0.167_855_74,
    -0.081_496_06,
    0.055_842_325,
    -0.038_793_053,
    0.024_770_023,
    -0.014_118_767,
    0.008_668_628_5,
    -0.005_486_802_7,
    0.001_803_188,
];
/// From this magnitude, the coarse `Phi` is 0 or 1.
const COARSE_EDGE: f32 = 4.2;
/// Below this, the exponential function is 0.
const LOWEST: f32 = -87.0;

/// Calls a function compiled for the features of a level.
macro_rules! on_path {
    ($level:expr, $body:ident($($name:ident: $kind:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
        fn avx512($($name: $kind),*) {
            $body($($name),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2($($name: $kind),*) {
            $body($($name),*)
        }
        match $level.isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level exists only if its instructions are available.
            Isa::Amx | Isa::Avx512Vnni => unsafe { avx512($($name),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were just detected.
            Isa::AvxVnni | Isa::Avx2 if briquette_core::simd::has_fma() => unsafe { avx2($($name),*) },
            _ => $body($($name),*),
        }
    }};
}
pub(crate) use on_path;

/// Returns the standard normal distribution function at `x`.
#[inline(always)]
pub(crate) fn phi(x: f32) -> f32 {
    phi_by(x, &PHI, EDGE)
}

/// Evaluates `Phi` from an odd number of interpolation coefficients that are valid up to `edge`.
#[inline(always)]
fn phi_by<const N: usize>(x: f32, coefficients: &[f32; N], edge: f32) -> f32 {
    let v = (x * x).mul_add(2.0 / (edge * edge), -1.0);
    // Even and odd powers are separate to shorten the chain of dependent products. Iterators are avoided,
    // because the functions that they call are not compiled for the features of the level.
    let (square, mut even, mut odd, mut at) = (v * v, coefficients[N - 1], coefficients[N - 2], N - 2);
    while at > 1 {
        at -= 2;
        even = even.mul_add(square, coefficients[at + 1]);
        odd = odd.mul_add(square, coefficients[at]);
    }
    let phi = x.mul_add(odd.mul_add(v, even.mul_add(square, coefficients[0])), 0.5);
    let phi = if x > edge { 1.0 } else { phi };
    if x < -edge { 0.0 } else { phi }
}

#[inline(always)]
fn gelu_all(x: &mut [f32]) {
    for x in x {
        *x *= phi(*x);
    }
}

#[inline(always)]
fn coarse_gelu_all(x: &mut [f32]) {
    for x in x {
        *x *= phi_by(*x, &COARSE_PHI, COARSE_EDGE);
    }
}

/// See [`coarse_gelu`](super::coarse_gelu()).
pub(crate) fn coarse_gelu(level: SimdLevel, x: &mut [f32]) {
    on_path!(level, coarse_gelu_all(x: &mut [f32]));
}

#[inline(always)]
fn multiply_all(x: &[f32], by: &[f32], out: &mut [f32]) {
    for at in 0..out.len() {
        out[at] = x[at] * by[at];
    }
}

/// Multiplies each row of `x` by one factor for each column.
///
/// # Panics
/// If the rows are not whole, or `out` has another length.
pub(crate) fn multiply_columns(level: SimdLevel, x: &[f32], columns: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(columns.len()), "rows of {} columns", columns.len());
    for (x, out) in x.chunks_exact(columns.len()).zip(out.chunks_exact_mut(columns.len())) {
        on_path!(level, multiply_all(x: &[f32], columns: &[f32], out: &mut [f32]));
    }
}

/// See [`gelu`](super::gelu()).
pub(crate) fn gelu(level: SimdLevel, x: &mut [f32]) {
    on_path!(level, gelu_all(x: &mut [f32]));
}

/// Returns `e^x` for x of at most 0: within 2 units in the last place, 0 below [`LOWEST`], NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let kept = if x < LOWEST { LOWEST } else { x };
    // Adding 1.5 · 2^23 rounds to an integer in the low bits.
    let shifted = kept.mul_add(std::f32::consts::LOG2_E, 12_582_912.0);
    let n = shifted - 12_582_912.0;
    let r = n.mul_add(-0.693_145_75, kept);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let p = 1.388_888_9e-3_f32.mul_add(r, 8.333_334e-3);
    let p = p.mul_add(r, 4.166_666_8e-2);
    let p = p.mul_add(r, 1.666_666_7e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    let value = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < LOWEST { 0.0 } else { value }
}

/// Reduces a row in lanes, then reduces the lanes.
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
#[inline(always)]
pub(crate) fn reduce(row: &[f32], start: f32, f: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], chunk[i]);
        }
    }
    for i in 0..rest.len() {
        lanes[i] = f(lanes[i], rest[i]);
    }
    join_lanes(lanes, join)
}

/// Reduces lanes by halves.
#[inline(always)]
pub(crate) fn join_lanes(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Folds `f(sum, a[i], b[i])` over two rows of equal length, in lanes and then over the lanes in order.
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
#[inline(always)]
pub(crate) fn sum_of_both(a: &[f32], b: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for at in 0..a.len() {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], a[at][i], b[at][i]);
        }
    }
    for i in 0..a_rest.len() {
        lanes[i] = f(lanes[i], a_rest[i], b_rest[i]);
    }
    lanes.iter().fold(0.0, |sum, lane| sum + lane)
}

#[inline(always)]
fn norm_row(x: &mut [f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    let n = x.len() as f32;
    let mean = reduce(x, 0.0, |sum, value| sum + value, |a, b| a + b) / n;
    let squares = reduce(x, 0.0, |sum, value| (value - mean).mul_add(value - mean, sum), |a, b| a + b);
    let scale = 1.0 / (squares / n + epsilon).sqrt();
    for ((x, gamma), beta) in x.iter_mut().zip(gamma).zip(beta) {
        *x = ((*x - mean) * scale).mul_add(*gamma, *beta);
    }
}

#[inline(always)]
fn add_norm_all(x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    for (index, x) in x.chunks_exact_mut(gamma.len()).enumerate() {
        if !shortcut.is_empty() {
            let shortcut = &shortcut[index * gamma.len()..][..gamma.len()];
            x.iter_mut().zip(shortcut).for_each(|(x, shortcut)| *x += shortcut);
        }
        norm_row(x, gamma, beta, epsilon);
    }
}

/// See [`add_norm`](super::add_norm()).
pub(crate) fn add_norm(level: SimdLevel, x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    on_path!(level, add_norm_all(x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32));
}
