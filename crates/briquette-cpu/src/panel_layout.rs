//! The layout of int8 codes in a panel of 32 outputs, and the checks before packing.

use crate::simd::PANEL;
use briquette_core::{Error, Result};
use rayon::prelude::*;

/// The largest number of inputs: `2^16 * 255 * 128` is the largest sum of products that fits in 32 bits.
pub const MAX_DEPTH: usize = 1 << 16;

/// Below this many codes, another thread costs more than it saves.
pub(crate) const MIN_CODES: usize = 1 << 18;

/// Refuses more inputs than 32-bit sums can hold.
pub fn check_depth(n_in: usize) -> Result<()> {
    if n_in > MAX_DEPTH {
        return Err(Error::refused(format!(
            "found {n_in} inputs, expected at most {MAX_DEPTH}: int32 sums cannot hold more"
        )));
    }
    Ok(())
}

pub(crate) fn check_lengths(codes: usize, scales: usize, n_out: usize, n_in: usize) {
    assert_eq!(codes, n_out * n_in, "{codes} codes for weights of [{n_out}, {n_in}]");
    assert_eq!(scales, n_out, "{scales} scales for {n_out} outputs");
}

/// Returns the sum of the codes of each output, to be multiplied by the zero point of activations.
pub(crate) fn row_sums(codes: &[i8], n_out: usize, n_in: usize) -> Vec<i32> {
    let sum = |row: usize| codes[row * n_in..(row + 1) * n_in].iter().map(|&code| i32::from(code)).sum();
    (0..n_out).into_par_iter().with_min_len(MIN_CODES / n_in.max(1) + 1).map(sum).collect()
}

/// Packs rows `first..first + 32` as one panel `[n_in / 4][32][4]`. Padding in `panel` must already be zero.
pub(crate) fn pack_panel(codes: &[i8], n_out: usize, n_in: usize, first: usize, panel: &mut [i8]) {
    /// Groups of inputs that are moved together: one cache line of each row.
    const STEP: usize = 16;
    let (panel, rows) = (panel.as_chunks_mut::<4>().0, first..n_out.min(first + PANEL));
    for start in (0..n_in).step_by(4 * STEP) {
        for row in rows.clone() {
            let inputs = &codes[row * n_in..(row + 1) * n_in][start..n_in.min(start + 4 * STEP)];
            let (groups, rest) = inputs.as_chunks::<4>();
            let mut places = panel[start / 4 * PANEL + row - first..].iter_mut().step_by(PANEL);
            places.by_ref().zip(groups).for_each(|(place, group)| *place = *group);
            if !rest.is_empty() {
                places.next().into_iter().for_each(|place| place[..rest.len()].copy_from_slice(rest));
            }
        }
    }
}

/// Returns the size of a panel of 32 outputs in bytes.
pub(crate) const fn panel_bytes(n_in: usize) -> usize {
    n_in.div_ceil(4) * 4 * PANEL
}
