//! AMX: products of tiles with 16 rows by 64 inputs and tiles with 64 inputs by 16 outputs.
//!
//! Instructions are inline assembly, because the intrinsics are not stable. A panel already has the layout of
//! tiles: 16 groups of 4 inputs, 128 bytes apart.
#![allow(unsafe_code)]

mod scratch;
mod tiles;

use super::avx512::{expand, finish_rows};
use super::block::OutputBlock;
use super::operands::{PANEL, PanelColumns, RowBlock};
use scratch::{Padded, STEP_BYTES, Step, Sums, TileScratch};
pub(super) use tiles::AmxTiles;
use tiles::{load_sums, multiply_half, multiply_steps, store_sums, zero_sums};

/// Up to this many rows, AVX-512 is faster, because it waits less for weights from memory.
pub(super) const FEW_ROWS: usize = 6;
/// The same for sparse weights. The limit is lower, because AVX-512 expands them with the units that multiply.
pub(super) const FEW_SPARSE_ROWS: usize = 4;
/// Steps per chunk. The weights of a chunk stay in the L1 cache while all tiles of rows are multiplied by them.
/// The L2 cache delivers half a line per cycle, so codes and weights would arrive at half the speed.
const CHUNK: usize = 8;

/// Adds products to the sums of tile `first..first + 32`: `weights` from step `at`, then `last` if it is given.
///
/// # Safety
/// Tiles are configured; the rows have these steps; `weights` has `n_steps` steps.
unsafe fn multiply_tile(
    rows: RowBlock,
    first: usize,
    at: usize,
    (weights, n_steps): (*const i8, usize),
    last: Option<&Padded>,
    next: *const i8,
) {
    let is_tall = rows.n_rows() - first > 16;
    let mut codes = rows.codes[first * rows.stride + 64 * at..].as_ptr();
    for (weights, n_steps) in [(weights, n_steps), last.map_or((weights, 0), |last| (last.0.as_ptr(), 1))] {
        // SAFETY: `codes` points to a multiple of 16 rows, 32 if there are more than 16.
        unsafe {
            if is_tall {
                multiply_steps::<true>(codes, rows.stride, weights, n_steps, next);
            } else {
                multiply_steps::<false>(codes, rows.stride, weights, n_steps, next);
            }
        }
        codes = codes.wrapping_add(64 * n_steps);
    }
}

/// The weights of a panel, by steps.
enum WeightSteps<'a> {
    /// Dense weights. A padded last step is stored separately. `next` is the panel to prefetch.
    Dense { whole: &'a [Step], last: Option<&'a Padded>, next: &'a [i8] },
    /// Sparse weights, expanded into `steps` chunk by chunk; `values` points to the next value.
    Sparse { masks: &'a [u64], values: *const i8, steps: &'a mut [Padded] },
}

impl WeightSteps<'_> {
    fn n_steps(&self) -> usize {
        match self {
            Self::Dense { whole, last, .. } => whole.len() + usize::from(last.is_some()),
            Self::Sparse { masks, .. } => masks.len().div_ceil(STEP_MASKS),
        }
    }

    /// Adds steps `at..at + n`, a chunk, to the sums of tile `index` of `n_tiles`.
    ///
    /// # Safety
    /// Tiles are configured, and rows are as deep as the panel. Chunks come in order, tile by tile.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    unsafe fn multiply(&mut self, rows: RowBlock, [index, n_tiles]: [usize; 2], at: usize, n: usize) {
        let first = 32 * index;
        match self {
            Self::Dense { whole, last, next } => {
                let weights = &whole[at..whole.len().min(at + n)];
                // If there is no next panel, these weights are prefetched again, because an unmapped address
                // would be slow.
                let next = next.get((at * n_tiles + index * weights.len()) * 256..).unwrap_or(&[]);
                let next = if next.is_empty() { weights.as_ptr().cast() } else { next.as_ptr() };
                let last = last.filter(|_| at + n > whole.len());
                // SAFETY: guaranteed by the caller.
                unsafe { multiply_tile(rows, first, at, (weights.as_ptr().cast(), weights.len()), last, next) };
            }
            Self::Sparse { masks, values, steps } => {
                let weights: *const i8 = steps.as_ptr().cast();
                if index > 0 {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { multiply_tile(rows, first, at, (weights, n), None, weights) };
                }
                // Half a step at a time: while one half is multiplied, other units of the processor expand the
                // next. Stored data is not loaded immediately, because a tile would have to wait for the store.
                let is_tall = rows.n_rows() > 16;
                for i in 0..=n {
                    let codes = rows.codes[64 * (at + i).saturating_sub(1)..].as_ptr();
                    for half in 0..2 {
                        if let Some(step) = steps.get_mut(i % CHUNK).filter(|_| i < n) {
                            // SAFETY: `values` points to the values of these masks.
                            *values = unsafe { expand_half(masks, 2 * (at + i) + half, *values, step) };
                        }
                        if i > 0 {
                            let weights = steps[(i - 1) % CHUNK].0.as_ptr();
                            // SAFETY: tiles are configured; rows are as deep as the panel, and a multiple of 16.
                            unsafe { multiply_half(half, is_tall, codes, rows.stride, weights) };
                        }
                    }
                }
            }
        }
    }
}

/// Mask words in a step.
const STEP_MASKS: usize = STEP_BYTES / 64;

/// Expands half a step, with zeros if masks are missing at the end. Returns a pointer to the next value.
///
/// # Safety
/// See [`expand`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
unsafe fn expand_half(masks: &[u64], half: usize, values: *const i8, step: &mut Padded) -> *const i8 {
    const N: usize = STEP_MASKS / 2;
    let codes = &mut step.0[half % 2 * 64 * N..][..64 * N];
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Some(masks) = masks.as_chunks::<N>().0.get(half) {
            expand(masks, values, codes)
        } else {
            std::hint::cold_path();
            let masks = &masks[masks.len().min(half * N)..];
            codes[64 * masks.len()..].fill(0);
            expand(masks, values, codes)
        }
    }
}

/// See [`super::scalar::multiply_panel`].
///
/// # Safety
/// The processor has AMX and AVX-512, tiles are configured for these rows, and the caller has checked the shapes: see
/// [`super::Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_panel(
    tiles: &mut AmxTiles,
    rows: RowBlock,
    panel: &[i8],
    next: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let (whole, rest) = panel.as_chunks::<STEP_BYTES>();
    let last = (!rest.is_empty()).then(|| {
        let mut last = Padded([0; STEP_BYTES]);
        last.0[..rest.len()].copy_from_slice(rest);
        last
    });
    let steps = WeightSteps::Dense { whole, last: last.as_ref(), next };
    // SAFETY: guaranteed by the caller.
    unsafe { multiply(rows, steps, &mut tiles.scratch.sums, columns, out) };
}

/// See [`super::Kernel::multiply_sparse_panel`].
///
/// # Safety
/// See [`multiply_panel`]; the panel comes from [`super::SparsePanels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_sparse_panel(
    tiles: &mut AmxTiles,
    rows: RowBlock,
    masks: &[u64],
    values: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let TileScratch { sums, steps } = &mut tiles.scratch;
    steps.resize(CHUNK, Padded([0; STEP_BYTES]));
    let steps = WeightSteps::Sparse { masks, values: values.as_ptr(), steps };
    // SAFETY: guaranteed by the caller.
    unsafe { multiply(rows, steps, sums, columns, out) };
}

/// # Safety
/// See [`multiply_panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
unsafe fn multiply(
    rows: RowBlock,
    mut steps: WeightSteps,
    sums: &mut Vec<Sums>,
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let (n_tiles, n_steps) = (rows.n_rows().div_ceil(32), steps.n_steps());
    sums.resize_with(n_tiles.max(sums.len()), || Sums([[0; PANEL]; 32]));
    let chunk = if n_tiles > 1 { CHUNK } else { n_steps.max(1) };
    for at in (0..n_steps.max(1)).step_by(chunk) {
        let n = chunk.min(n_steps - at);
        let is_last = at + n == n_steps;
        for (i, sums) in sums[..n_tiles].iter_mut().enumerate() {
            let n_rows = 32.min(rows.n_rows() - 32 * i);
            // SAFETY: tiles are configured, the tile and its rows exist, and rows are as deep as the panel.
            unsafe {
                // The sums of a single tile stay in their registers.
                if at == 0 {
                    zero_sums();
                } else if n_tiles > 1 {
                    load_sums(sums);
                }
                steps.multiply(rows, [i, n_tiles], at, n);
                if is_last || n_tiles > 1 {
                    store_sums(sums, n_rows > 16);
                }
            }
            if is_last {
                finish_rows(&sums.0[..n_rows], 32 * i, rows, columns, out);
            }
        }
    }
}
