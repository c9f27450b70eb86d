//! The peak rate of int8 operations of a core, without loads and stores.
#![allow(unsafe_code)]

use briquette_core::simd::SimdLevel;
use std::arch::asm;
use std::time::Instant;

/// Returns the operations per second (two per product) of `vpdpbusd` on 512-bit registers, the best of several
/// runs.
///
/// Returns `None` if the processor does not have AVX-512 VNNI.
pub fn register_peak() -> Option<f64> {
    SimdLevel::named("avx512-vnni").map(|_| (0..200).map(|_| run_once()).fold(0.0, f64::max))
}

fn run_once() -> f64 {
    const ROUNDS: u64 = 50_000;
    let start = Instant::now();
    macro_rules! on_16_registers {
        ($($sum:literal)*) => {
            // SAFETY: registers only, and `register_peak` detected the extension.
            unsafe {
                asm!("2:", $(concat!("vpdpbusd zmm", $sum, ", zmm30, zmm31"),)* "dec {n}", "jnz 2b",
                    n = inout(reg) ROUNDS => _, options(nostack, nomem),
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                    out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _);
            }
        };
    }
    on_16_registers!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    (ROUNDS * 16 * 128) as f64 / start.elapsed().as_secs_f64()
}
