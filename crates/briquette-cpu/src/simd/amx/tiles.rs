//! AMX instructions as inline assembly, because the intrinsics are not stable.
#![allow(unsafe_code)]

use super::scratch::{Sums, TileScratch};
use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// The shapes of tiles, with rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Returns a configuration of tiles with 16 rows. With fewer rows of codes, the tiles of codes and sums are
    /// smaller, because a product takes one cycle per row of codes.
    const fn of(n_rows: usize) -> Self {
        let n = if n_rows < 16 { n_rows as u8 } else { 16 };
        Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [n, n, 16, 16, n, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

thread_local! {
    /// `None` while the tiles are in use.
    static SCRATCH: Cell<Option<TileScratch>> = Cell::new(Some(TileScratch::default()));
}

/// A guard for the configured tiles of this thread. Dropping it resets the registers.
pub(in crate::simd) struct AmxTiles {
    pub(super) scratch: TileScratch,
    /// Tile registers belong to a thread, so the guard must not be sent to another.
    thread: PhantomData<*const ()>,
}

impl AmxTiles {
    /// Configures tiles for blocks of 16 rows, or of `n_rows` if there are fewer.
    ///
    /// # Safety
    /// The processor has AMX.
    ///
    /// # Panics
    /// If the tiles of this thread are in use.
    pub(in crate::simd) unsafe fn configure(n_rows: usize) -> Self {
        let Some(scratch) = SCRATCH.take() else { panic!("the tiles of this thread are in use") };
        let config = TileConfig::of(n_rows);
        // SAFETY: the configuration is 64 readable bytes of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        Self { scratch, thread: PhantomData }
    }
}

impl Drop for AmxTiles {
    fn drop(&mut self) {
        // SAFETY: `configure` ran, so the processor has AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
        SCRATCH.set(Some(std::mem::take(&mut self.scratch)));
    }
}

/// 32 rows by 32 outputs: `tmm0..3` are sums, `tmm4..5` codes, `tmm6..7` weights.
macro_rules! tall_step {
    () => {
        concat!(
            "tileloadd tmm6, [{weights} + {line}]\n",
            "tileloadd tmm4, [{codes} + {stride}]\n",
            "tdpbusd tmm0, tmm4, tmm6\n",
            "tileloadd tmm7, [{weights} + {line} + 64]\n",
            "tdpbusd tmm1, tmm4, tmm7\n",
            "tileloadd tmm5, [{lower} + {stride}]\n",
            "tdpbusd tmm2, tmm5, tmm6\n",
            "tdpbusd tmm3, tmm5, tmm7\n"
        )
    };
}

/// 16 rows by 32 outputs: `tmm0..1` are sums.
macro_rules! low_step {
    () => {
        concat!(
            "tileloadd tmm6, [{weights} + {line}]\n",
            "tileloadd tmm4, [{codes} + {stride}]\n",
            "tdpbusd tmm0, tmm4, tmm6\n",
            "tileloadd tmm7, [{weights} + {line} + 64]\n",
            "tdpbusd tmm1, tmm4, tmm7\n"
        )
    };
}

/// Adds `n_steps` steps of 64 inputs to the sums in `tmm0..3`. Prefetches `next` into the L2 cache, 4 lines per
/// step.
///
/// # Safety
/// Tiles are configured. There are 32 rows of codes (16 if not `TALL`) and 2048 bytes of weights for each step.
pub(super) unsafe fn multiply_steps<const TALL: bool>(
    codes: *const u8,
    stride: usize,
    weights: *const i8,
    n_steps: usize,
    next: *const i8,
) {
    if n_steps == 0 {
        return;
    }
    macro_rules! run {
        ($step:expr $(, $lower:ident)?) => {
            asm!(
                "2:", $step,
                "prefetcht1 [{next}]", "prefetcht1 [{next} + 64]", "prefetcht1 [{next} + 128]", "prefetcht1 [{next} + 192]",
                "add {next}, 256", "add {codes}, 64", $(concat!("add {", stringify!($lower), "}, 64"),)?
                "add {weights}, 2048", "dec {n}", "jnz 2b",
                codes = inout(reg) codes => _, $($lower = inout(reg) codes.add(16 * stride) => _,)?
                weights = inout(reg) weights => _, next = inout(reg) next => _, n = inout(reg) n_steps => _,
                stride = in(reg) stride, line = in(reg) 128_usize, options(nostack, readonly),
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            )
        };
    }
    // SAFETY: the caller guarantees the addresses of tiles; a prefetch accepts any address.
    unsafe { if TALL { run!(tall_step!(), lower) } else { run!(low_step!()) } }
}

/// Adds a step of 64 inputs for its first or last 16 outputs to the sums in `tmm0` or `tmm1` (and `tmm2` or
/// `tmm3`).
///
/// The codes stay in their tiles for the second half.
///
/// # Safety
/// See [`multiply_steps`]. A second half must directly follow the first half of the same codes.
pub(super) unsafe fn multiply_half(half: usize, is_tall: bool, codes: *const u8, stride: usize, weights: *const i8) {
    // SAFETY: the caller guarantees the addresses of tiles.
    unsafe {
        if half == 0 {
            asm!("tileloadd tmm6, [{weights} + {line}]", "tileloadd tmm4, [{codes} + {stride}]", "tdpbusd tmm0, tmm4, tmm6",
                weights = in(reg) weights, line = in(reg) 128_usize, codes = in(reg) codes, stride = in(reg) stride,
                options(nostack, readonly), out("tmm0") _, out("tmm4") _, out("tmm6") _);
            if is_tall {
                asm!("tileloadd tmm5, [{lower} + {stride}]", "tdpbusd tmm2, tmm5, tmm6",
                    lower = in(reg) codes.add(16 * stride), stride = in(reg) stride,
                    options(nostack, readonly), out("tmm2") _, out("tmm5") _);
            }
        } else {
            asm!("tileloadd tmm7, [{weights} + {line} + 64]", "tdpbusd tmm1, tmm4, tmm7",
                weights = in(reg) weights, line = in(reg) 128_usize,
                options(nostack, readonly), out("tmm1") _, out("tmm7") _);
            if is_tall {
                asm!("tdpbusd tmm3, tmm5, tmm7", options(nostack, nomem), out("tmm3") _);
            }
        }
    }
}

/// # Safety
/// Tiles are configured.
pub(super) unsafe fn zero_sums() {
    // SAFETY: registers only.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _);
    }
}

/// # Safety
/// Tiles are configured.
pub(super) unsafe fn load_sums(sums: &Sums) {
    // SAFETY: four quarters of 16 rows, 128 bytes apart, are the whole array.
    unsafe {
        asm!("tileloadd tmm0, [{at} + {line}]", "tileloadd tmm1, [{at} + {line} + 64]",
            "tileloadd tmm2, [{at} + {line} + 2048]", "tileloadd tmm3, [{at} + {line} + 2112]",
            at = in(reg) sums.0.as_ptr(), line = in(reg) 128_usize, options(nostack, readonly),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _);
    }
}

/// # Safety
/// Tiles are configured.
pub(super) unsafe fn store_sums(sums: &mut Sums, is_tall: bool) {
    // SAFETY: four quarters of 16 rows, 128 bytes apart, are the whole array.
    unsafe {
        asm!("tilestored [{at} + {line}], tmm0", "tilestored [{at} + {line} + 64], tmm1",
            at = in(reg) sums.0.as_mut_ptr(), line = in(reg) 128_usize, options(nostack));
        if is_tall {
            asm!("tilestored [{at} + {line} + 2048], tmm2", "tilestored [{at} + {line} + 2112], tmm3",
                at = in(reg) sums.0.as_mut_ptr(), line = in(reg) 128_usize, options(nostack));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::simd::SimdLevel;

    #[test]
    fn tiles_in_use_panic_and_are_released() {
        if SimdLevel::named("amx").is_none() {
            return;
        }
        // SAFETY: the processor has AMX.
        let configure = || unsafe { AmxTiles::configure(3) };
        let tiles = configure();
        assert!(std::panic::catch_unwind(configure).is_err());
        drop(tiles);
        configure();
    }
}
