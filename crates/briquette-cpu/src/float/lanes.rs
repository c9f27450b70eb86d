//! Explicit vectors of 16 floats, for loops that compilers do not vectorise inside larger functions.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Floats in a vector.
pub(super) const N_LANES: usize = 16;

/// A vector of 16 floats. All implementations give the same bits.
pub(super) trait FloatLanes: Copy {
    /// Returns 16 times `x`.
    fn splat(x: f32) -> Self;
    fn load(values: &[f32; N_LANES]) -> Self;
    fn store(self, values: &mut [f32; N_LANES]);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Returns `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
}

impl FloatLanes for [f32; N_LANES] {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        [x; N_LANES]
    }

    #[inline(always)]
    fn load(values: &[f32; N_LANES]) -> Self {
        *values
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; N_LANES]) {
        *values = self;
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for i in 0..N_LANES {
            self[i] += other[i];
        }
        self
    }

    #[inline(always)]
    fn mul(mut self, other: Self) -> Self {
        for i in 0..N_LANES {
            self[i] *= other[i];
        }
        self
    }

    #[inline(always)]
    fn mul_add(mut self, a: Self, b: Self) -> Self {
        for i in 0..N_LANES {
            self[i] = self[i].mul_add(a[i], b[i]);
        }
        self
    }
}

/// Used only in functions compiled for AVX-512.
#[cfg(target_arch = "x86_64")]
impl FloatLanes for __m512 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see the comment on this impl; the same holds below.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(values: &[f32; N_LANES]) -> Self {
        // SAFETY: 16 floats.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; N_LANES]) {
        // SAFETY: room for 16 floats.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(self, a, b) }
    }
}
