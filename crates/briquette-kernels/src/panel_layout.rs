//! How int8 codes lie in a panel of 32 outputs, and what is checked before they are put there.

use crate::simd::PANEL;
use briquette_core::{Error, Result};

/// The largest number of inputs: `2^16 * 255 * 128` is the last product sum that 32 bits hold.
pub const MAX_DEPTH: usize = 1 << 16;

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
    (0..n_out).map(|row| codes[row * n_in..(row + 1) * n_in].iter().map(|&code| i32::from(code)).sum()).collect()
}

/// Lays out rows `first..first + 32` as one panel `[n_in / 4][32][4]`; `panel` is zero where it is not written.
pub(crate) fn pack_panel(codes: &[i8], n_out: usize, n_in: usize, first: usize, panel: &mut [i8]) {
    for row in first..n_out.min(first + PANEL) {
        for (group, inputs) in codes[row * n_in..(row + 1) * n_in].chunks(4).enumerate() {
            let at = (group * PANEL + row - first) * 4;
            panel[at..at + inputs.len()].copy_from_slice(inputs);
        }
    }
}

/// Bytes of a panel of 32 outputs.
pub(crate) const fn panel_bytes(n_in: usize) -> usize {
    n_in.div_ceil(4) * 4 * PANEL
}
