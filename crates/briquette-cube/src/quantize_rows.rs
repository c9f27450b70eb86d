//! Activations as 8-bit codes, a scale and a zero point for each row.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// Placeholder.
#[cube(launch_unchecked)]
pub fn quantize_rows(x: &[f32], codes: &mut [u32], scales: &mut [f32], zeros: &mut [i32], n_cols: u32, stride: u32) {
    let row = CUBE_POS_X as usize;
    if UNIT_POS == 0 {
        scales[row] = x[row * n_cols as usize];
        zeros[row] = 0;
        codes[row * stride as usize] = 0;
    }
}
