//! How int8 codes lie in a panel of 32 outputs, and what is checked before they are put there.

use crate::simd::{PANEL, RowBlock};
use briquette_core::{Error, Result};
use rayon::prelude::*;
use std::ops::Range;

/// The largest number of inputs: `2^16 * 255 * 128` is the last product sum that 32 bits hold.
pub const MAX_DEPTH: usize = 1 << 16;

/// Codes below which another thread costs more than it saves.
pub(crate) const MIN_CODES: usize = 1 << 18;

/// Refuses what 32-bit sums cannot hold.
pub(crate) fn check_depth(n_in: usize) -> Result<()> {
    if n_in > MAX_DEPTH {
        return Err(Error::refused(format!(
            "{n_in} inputs are more than int32 sums can hold; the most is {MAX_DEPTH}"
        )));
    }
    Ok(())
}

pub(crate) fn check_lengths(codes: usize, scales: usize, n_out: usize, n_in: usize) {
    assert_eq!(codes, n_out * n_in, "{codes} codes for weights of [{n_out}, {n_in}]");
    assert_eq!(scales, n_out, "{scales} scales for {n_out} outputs");
}

/// Sums of the codes of each output, which a zero point of the activations multiplies.
pub(crate) fn row_sums(codes: &[i8], n_out: usize, n_in: usize) -> Vec<i32> {
    let sum = |row: usize| codes[row * n_in..(row + 1) * n_in].iter().map(|&code| i32::from(code)).sum();
    (0..n_out).into_par_iter().with_min_len(MIN_CODES / n_in.max(1) + 1).map(sum).collect()
}

/// Lays out rows `first..first + 32` as one panel `[n_in / 4][32][4]`; `panel` is zero where it is not written.
pub(crate) fn pack_panel(codes: &[i8], n_out: usize, n_in: usize, first: usize, panel: &mut [i8]) {
    /// Groups of inputs that are moved at a time: a line of each row.
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

/// Where activations have the code of 0, weights have 0.
const SIGNS: u32 = 0x8080_8080;

/// Lays out rows of activations, whose zero point is 128, as the outputs of a panel `[n_in / 4][32][4]`: up to 32 rows from `first` on, and of those as
/// many codes from `column` on as the panel is deep; with the sum of each one's codes. What is beyond the rows is arbitrary.
pub(crate) fn turn_rows(rows: RowBlock, (first, column): (usize, usize), panel: &mut [i8], sums: &mut [i32; PANEL]) {
    let n_in = panel.len() / PANEL;
    let (groups, n) = (bytemuck::cast_slice_mut::<i8, [u32; PANEL]>(panel), PANEL.min(rows.n_rows() - first));
    for lane in 0..n {
        let row = &rows.codes[(first + lane) * rows.stride + column..][..n_in];
        for (group, codes) in groups.iter_mut().zip(row.as_chunks::<4>().0) {
            group[lane] = u32::from_ne_bytes(*codes) ^ SIGNS;
        }
        sums[lane] = row.iter().map(|&code| i32::from(code)).sum::<i32>() - 128 * n_in as i32;
    }
}

/// Lays out columns of rows of activations, whose zero point is 128, as the outputs of a panel `[n_rows / 4][32][4]`. What is beyond the rows and columns
/// is arbitrary.
pub(crate) fn weave_rows(rows: RowBlock, columns: Range<usize>, panel: &mut [i8]) {
    for (index, words) in bytemuck::cast_slice_mut::<i8, [u32; PANEL]>(panel).iter_mut().enumerate() {
        let row = |i: usize| &rows.codes[(4 * index + i) * rows.stride..][columns.clone()];
        let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
        for ((((word, a), b), c), d) in words.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *word = u32::from_le_bytes([*a, *b, *c, *d]) ^ SIGNS;
        }
    }
}

/// Bytes of a panel of 32 outputs.
pub(crate) const fn panel_bytes(n_in: usize) -> usize {
    n_in.div_ceil(4) * 4 * PANEL
}
