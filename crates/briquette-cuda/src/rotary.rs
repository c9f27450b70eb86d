//! Rotary positions.

use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;

/// Rotates features `i` and `i + half` of each head by the angle of their token, one unit per pair; a row has `row_pairs` pairs.
///
/// Token `t` has the position `t % n_positions` of the tables `[n_positions, half]`.
#[cube(launch_unchecked)]
pub fn rotate_rows<F: Float>(
    x: &[F],
    sin: &[f32],
    cos: &[f32],
    y: &mut [F],
    n_pairs: u32,
    row_pairs: u32,
    half: u32,
    n_positions: u32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < n_pairs as usize {
        let (row_pairs, half) = (row_pairs as usize, half as usize);
        let (token, pair) = (at / row_pairs, at % row_pairs);
        let first = token * row_pairs * 2 + pair / half * half * 2 + pair % half;
        let angle = token % n_positions as usize * half + pair % half;
        let (sin, cos) = (sin[angle], cos[angle]);
        let (a, b) = (f32::cast_from(x[first]), f32::cast_from(x[first + half]));
        y[first] = F::cast_from(a * cos - b * sin);
        y[first + half] = F::cast_from(b * cos + a * sin);
    }
}
