//! AMX: tiles of 16 rows by 64 inputs, multiplied by tiles of 64 inputs by 16 outputs.
//!
//! The instructions are written as assembly; the intrinsics are not stable. A panel is already laid out as a tile wants
//! it: 16 groups of 4 inputs, 128 bytes apart.
#![allow(unsafe_code)]

mod tiles;

use super::avx512::{expand, finish_rows};
use super::{Block, Columns, PANEL, RowBlock};
use std::cell::RefCell;
pub(super) use tiles::is_available;
use tiles::{Sums, Tiles, load_sums, multiply_steps, store_sums, zero_sums};

/// Up to this many rows, AVX-512 is faster: it waits less for weights that come from memory.
pub(super) const FEW_ROWS: usize = 8;
/// The same of sparse weights, which it must spread out in the units that multiply.
pub(super) const FEW_SPARSE_ROWS: usize = 4;
/// Groups of 4 inputs in a tile.
const GROUPS: usize = 16;

/// Bytes of weights in a step: 64 inputs of 32 outputs.
const STEP_BYTES: usize = 4 * PANEL * GROUPS;
type Step = [i8; STEP_BYTES];

/// A step whose inputs do not fill it has zeros after them.
#[derive(Clone)]
#[repr(C, align(64))]
struct Padded(Step);

/// Steps after which the next tile of rows is begun: the weights of so many stay in the first cache while rows pass by.
/// From the second cache, which gives half a line a cycle, both would come at half the speed.
const CHUNK: usize = 8;

#[derive(Default)]
struct Scratch {
    sums: Vec<Sums>,
    /// Sparse weights of a chunk, spread out.
    steps: Vec<Padded>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Adds to the sums of tile `first..first + 32` rows: `weights` from step `at` of the rows on, then `last` if it is given.
///
/// # Safety
/// Tiles are configured; rows are as deep as that; there are `n_steps` steps at `weights`.
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
        // SAFETY: `codes` is followed by a multiple of 16 rows, 32 where there are more than 16.
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

/// The weights of a panel, step by step.
enum Steps<'a> {
    /// As they are; the last apart where it had to be padded; `next` is what will be multiplied next.
    Dense { whole: &'a [Step], last: Option<&'a Padded>, next: &'a [i8] },
    /// Spread out a chunk at a time: masks, and the next value.
    Sparse { masks: &'a [u64], values: *const i8, steps: &'a mut [Padded] },
}

impl Steps<'_> {
    fn n_steps(&self) -> usize {
        match self {
            Self::Dense { whole, last, .. } => whole.len() + usize::from(last.is_some()),
            Self::Sparse { masks, .. } => masks.len().div_ceil(STEP_MASKS),
        }
    }

    /// Adds steps `at..at + n`, a chunk, to the sums of tile `index` of `n_tiles`.
    ///
    /// # Safety
    /// Tiles are configured, and rows are as deep as the panel; chunks come in order, tile by tile.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    unsafe fn multiply(&mut self, rows: RowBlock, [index, n_tiles]: [usize; 2], at: usize, n: usize) {
        let first = 32 * index;
        match self {
            Self::Dense { whole, last, next } => {
                let weights = &whole[at..whole.len().min(at + n)];
                // Fetching from where nothing is mapped is slow; what is at hand already costs little.
                let next = next.get((at * n_tiles + index * weights.len()) * 256..).unwrap_or(&[]);
                let next = if next.is_empty() { weights.as_ptr().cast() } else { next.as_ptr() };
                let last = last.filter(|_| at + n > whole.len());
                // SAFETY: as the caller says.
                unsafe { multiply_tile(rows, first, at, (weights.as_ptr().cast(), weights.len()), last, next) };
            }
            Self::Sparse { masks, values, steps } => {
                let weights: *const i8 = steps.as_ptr().cast();
                if index > 0 {
                    // SAFETY: as the caller says.
                    return unsafe { multiply_tile(rows, first, at, (weights, n), None, weights) };
                }
                // Step by step: while one is multiplied the next is spread out, by other parts of the processor. What was
                // just stored is not loaded at once, for which a tile would have to wait.
                for i in 0..=n {
                    if let Some(step) = steps[..n].get_mut(i) {
                        let masks = &masks[(at + i) * STEP_MASKS..masks.len().min((at + i + 1) * STEP_MASKS)];
                        // SAFETY: the values of these masks come next.
                        *values = unsafe { expand(masks, *values, &mut step.0) };
                        step.0[64 * masks.len()..].fill(0);
                    }
                    if i > 0 {
                        let step = (steps[i - 1].0.as_ptr(), 1);
                        // SAFETY: as the caller says.
                        unsafe { multiply_tile(rows, first, at + i - 1, step, None, weights) };
                    }
                }
            }
        }
    }
}

/// Masks of a step.
const STEP_MASKS: usize = STEP_BYTES / 64;

/// See [`super::scalar::multiply_panel`].
///
/// # Safety
/// The processor has AMX and AVX-512, and the caller has checked the shapes: see [`super::multiply_panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_panel(rows: RowBlock, panel: &[i8], next: &[i8], columns: &Columns, out: &mut Block) {
    let (whole, rest) = panel.as_chunks::<STEP_BYTES>();
    let mut last = Padded([0; STEP_BYTES]);
    last.0[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last);
    let mut scratch = SCRATCH.take();
    // SAFETY: the caller vouches for all of it.
    unsafe { multiply(rows, Steps::Dense { whole, last, next }, &mut scratch.sums, columns, out) };
    SCRATCH.set(scratch);
}

/// See [`super::multiply_sparse_panel`].
///
/// # Safety
/// As [`multiply_panel`]; the panel is one of [`super::SparsePanels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_sparse_panel(
    rows: RowBlock,
    masks: &[u64],
    values: &[i8],
    columns: &Columns,
    out: &mut Block,
) {
    let mut scratch = SCRATCH.take();
    scratch.steps.resize(CHUNK, Padded([0; STEP_BYTES]));
    let steps = Steps::Sparse { masks, values: values.as_ptr(), steps: &mut scratch.steps };
    // SAFETY: the caller vouches for all of it.
    unsafe { multiply(rows, steps, &mut scratch.sums, columns, out) };
    SCRATCH.set(scratch);
}

/// # Safety
/// As [`multiply_panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
unsafe fn multiply(rows: RowBlock, mut steps: Steps, sums: &mut Vec<Sums>, columns: &Columns, out: &mut Block) {
    let (n_tiles, n_steps) = (rows.n_rows().div_ceil(32), steps.n_steps());
    sums.resize_with(n_tiles.max(sums.len()), || Sums([[0; PANEL]; 32]));
    // SAFETY: the caller vouches for AMX.
    let tiles = unsafe { Tiles::configure(rows.n_rows()) };
    for at in (0..n_steps.max(1)).step_by(CHUNK) {
        let n = CHUNK.min(n_steps - at);
        let is_last = at + n == n_steps;
        for (i, sums) in sums[..n_tiles].iter_mut().enumerate() {
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
                    store_sums(sums);
                }
            }
            if is_last {
                let n = 32.min(rows.n_rows() - 32 * i);
                finish_rows(&sums.0[..n], 32 * i, rows, columns, out);
            }
        }
    }
    drop(tiles);
}
