//! AMX: tiles of 16 rows by 64 inputs, multiplied by tiles of 64 inputs by 16 outputs.
//!
//! The instructions are written as assembly; the intrinsics are not stable. A panel is already laid out as a tile wants
//! it: 16 groups of 4 inputs, 128 bytes apart.
#![allow(unsafe_code)]

use super::avx512::finish_rows;
use super::{Block, Columns, PANEL, RowBlock};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::cell::RefCell;
use std::sync::OnceLock;

/// Up to this many rows, AVX-512 is faster.
pub(super) const FEW_ROWS: usize = 8;
/// Groups of 4 inputs in a tile.
const GROUPS: usize = 16;

/// Whether the processor has 8-bit tiles and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| cfg!(target_os = "linux") && processor_has_tiles() && request_permission())
}

fn processor_has_tiles() -> bool {
    const TILE_AND_INT8: u32 = 0b11 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    if !is_x86_feature_detected!("xsave") || __cpuid(0).eax < 7 {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: the caller has found XSAVE, and AVX-512, which only a system that sets OSXSAVE reports.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: `xsave` was just detected.
    let states = unsafe { enabled_states() };
    __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8 && states & TILE_STATE == TILE_STATE
}

/// Linux keeps the 8 KiB of tile registers from a process until it asks: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`.
fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the call reads its two numbers and writes no memory of ours.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// The shape of every tile: 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    const WHOLE: Self = Self {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };
}

/// Tiles in use for as long as this lives; the registers then go back to their initial state.
struct Tiles;

impl Tiles {
    /// # Safety
    /// The processor has AMX.
    unsafe fn configure() -> Self {
        // SAFETY: the configuration is 64 readable bytes of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &Config::WHOLE, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `configure` ran, so the processor has AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sums of up to 32 rows and 32 outputs.
#[repr(C, align(64))]
struct Sums([[i32; PANEL]; 32]);

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

/// Adds `n_steps` steps of 64 inputs to the sums in `tmm0..3`. `next` is fetched into the second cache, 4 lines a step.
///
/// # Safety
/// Tiles are configured; there are 32 rows of codes (16 if not `TALL`) and 2048 bytes of weights for each step.
unsafe fn multiply_steps<const TALL: bool>(
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
    // SAFETY: the caller vouches for the addresses that tiles are loaded from; a prefetch may be of any.
    unsafe { if TALL { run!(tall_step!(), lower) } else { run!(low_step!()) } }
}

/// # Safety
/// Tiles are configured.
unsafe fn zero_sums() {
    // SAFETY: registers only.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _);
    }
}

/// # Safety
/// Tiles are configured.
unsafe fn load_sums(sums: &Sums) {
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
unsafe fn store_sums(sums: &mut Sums) {
    // SAFETY: four quarters of 16 rows, 128 bytes apart, are the whole array.
    unsafe {
        asm!("tilestored [{at} + {line}], tmm0", "tilestored [{at} + {line} + 64], tmm1",
            "tilestored [{at} + {line} + 2048], tmm2", "tilestored [{at} + {line} + 2112], tmm3",
            at = in(reg) sums.0.as_mut_ptr(), line = in(reg) 128_usize, options(nostack));
    }
}

/// Bytes of weights in a step: 64 inputs of 32 outputs.
const STEP_BYTES: usize = 4 * PANEL * GROUPS;
type Step = [i8; STEP_BYTES];

/// The last inputs of a panel where they do not fill a tile, with zeros after them.
#[repr(C, align(64))]
struct Rest(Step);

/// Steps after which the next tile of rows is begun: the weights of so many stay in the first cache while rows pass by.
/// From the second cache, which gives half a line a cycle, both would come at half the speed.
const CHUNK: usize = 8;

thread_local! {
    static SUMS: RefCell<Vec<Sums>> = const { RefCell::new(Vec::new()) };
}

/// Adds to the sums of tile `first..first + 32` rows: `weights` from step `at` of the rows on, and `last` if it is given.
///
/// # Safety
/// Tiles are configured; rows are as deep as that.
unsafe fn multiply_tile(
    rows: RowBlock,
    first: usize,
    at: usize,
    weights: &[Step],
    last: Option<&Step>,
    next: *const i8,
) {
    let is_tall = rows.n_rows() - first > 16;
    let codes = rows.codes[first * rows.stride + 64 * at..].as_ptr();
    let steps = [weights, last.map_or(&[], std::slice::from_ref)];
    let mut codes = codes;
    for steps in steps {
        // SAFETY: `codes` is followed by a multiple of 16 rows, 32 where there are more than 16.
        unsafe {
            if is_tall {
                multiply_steps::<true>(codes, rows.stride, steps.as_ptr().cast(), steps.len(), next);
            } else {
                multiply_steps::<false>(codes, rows.stride, steps.as_ptr().cast(), steps.len(), next);
            }
        }
        codes = codes.wrapping_add(64 * steps.len());
    }
}

/// See [`super::scalar::multiply_panel`].
///
/// # Safety
/// The processor has AMX and AVX-512, and the caller has checked the shapes: see [`super::multiply_panel`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply_panel(rows: RowBlock, panel: &[i8], next: &[i8], columns: &Columns, out: &mut Block) {
    let (whole, rest) = panel.as_chunks::<STEP_BYTES>();
    let mut last = Rest([0; STEP_BYTES]);
    last.0[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last.0);
    let n_tiles = rows.n_rows().div_ceil(32);
    let chunk = if n_tiles == 1 { whole.len().max(1) } else { CHUNK };
    let n_chunks = whole.len().div_ceil(chunk).max(1);
    let mut all_sums = SUMS.take();
    all_sums.resize_with(n_tiles.max(all_sums.len()), || Sums([[0; PANEL]; 32]));
    // SAFETY: the caller vouches for AMX.
    let tiles = unsafe { Tiles::configure() };
    for c in 0..n_chunks {
        let (at, is_last) = (c * chunk, c + 1 == n_chunks);
        let weights = &whole[at..whole.len().min(at + chunk)];
        for (i, sums) in all_sums[..n_tiles].iter_mut().enumerate() {
            // Fetching from where nothing is mapped is slow; what is at hand already costs little.
            let next = next.get((at * n_tiles + i * weights.len()) * 256..).unwrap_or(&[]);
            let next = if next.is_empty() { panel.as_ptr() } else { next.as_ptr() };
            // SAFETY: tiles are configured, the tile and its rows exist, and rows are as deep as the panel.
            unsafe {
                if c == 0 {
                    zero_sums()
                } else {
                    load_sums(sums)
                }
                multiply_tile(rows, 32 * i, at, weights, last.filter(|_| is_last), next);
                store_sums(sums);
            }
            if is_last {
                let n = 32.min(rows.n_rows() - 32 * i);
                finish_rows(&sums.0[..n], 32 * i, rows, columns, out);
            }
        }
    }
    drop(tiles);
    SUMS.set(all_sums);
}
