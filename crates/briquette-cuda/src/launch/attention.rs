//! Launches of attention kernels.

use super::{Floats, ScoreMask};
use crate::attention::{self, AttentionForm, AttentionLayoutLaunch, MOST_VECTORS};
use crate::attention_mma;
use crate::gpu::{Gpu, cubes, groups, u32_of};
use crate::softmax::ScoreSteps;
use cubecl_core::prelude::CubeDim;

/// Up to this many rows, warps read different keys.
const FEW: usize = 8;

/// The heads of an attention, and the layout of its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceHeads {
    /// Number of sequences.
    pub images: usize,
    /// Heads of queries.
    pub n: usize,
    /// Heads of keys and values.
    pub kept: usize,
    /// Values of a head.
    pub width: usize,
    /// Number of keys.
    pub n_keys: usize,
    /// Keys and values are `[images, heads, capacity, width]` with this capacity, or without one
    /// `[images, keys, heads, width]`.
    pub capacity: Option<usize>,
}

impl DeviceHeads {
    /// Returns whether a device has a kernel for heads of this width: one with TF32 matrix instructions, up to 128 values in
    /// multiples of eight.
    pub fn fit(gpu: &Gpu, width: usize) -> bool {
        width > 0 && width.is_multiple_of(8) && width <= 4 * MOST_VECTORS && gpu.has_tf32_matrices()
    }

    /// Returns the strides between images, heads and tokens, in vectors of four.
    const fn strides(&self) -> [usize; 3] {
        let (vectors, kept) = (self.width / 4, self.kept);
        match self.capacity {
            Some(capacity) => [kept * capacity * vectors, capacity * vectors, vectors],
            None => [self.n_keys * kept * vectors, vectors, kept * vectors],
        }
    }
}

/// Computes attention of queries `[images · length, heads · width]`; see
/// [`attend_few`](attention::attend_few()).
///
/// # Panics
/// If [`DeviceHeads::fit`] is false for the width, or sizes disagree.
pub fn attended(
    gpu: &Gpu,
    q: &Floats,
    [k, v]: [&Floats; 2],
    hidden: Option<&Floats>,
    heads: &DeviceHeads,
    mask: &ScoreMask,
) -> Floats {
    let y = Floats::empty(gpu, q.dtype, q.n_rows, q.n_cols);
    if q.n_rows * q.n_cols == 0 {
        return y;
    }
    let &DeviceHeads { images, n, kept, width, n_keys, capacity } = heads;
    assert!(DeviceHeads::fit(gpu, width) && n.is_multiple_of(kept) && n_keys > 0, "{heads:?}");
    assert!(q.n_rows * q.n_cols == images * mask.length * n * width, "queries of {heads:?}, {mask:?}");
    let n_kept = images * kept * width * capacity.unwrap_or(n_keys);
    assert!(capacity.is_none_or(|capacity| capacity >= n_keys), "{heads:?}");
    assert!(
        [k, v].iter().all(|kept| kept.dtype == q.dtype && kept.n_rows * kept.n_cols == n_kept),
        "keys of {heads:?}"
    );
    assert!(hidden.is_none_or(|hidden| hidden.n_rows * hidden.n_cols == images * n_keys), "a mask of {heads:?}");
    let (has_cap, has_window) = (mask.cap.is_some(), mask.window.is_some());
    let steps = ScoreSteps { hides: hidden.is_some(), is_causal: mask.is_causal, has_window, has_cap };
    let rows = n / kept * mask.length;
    let vectors = width / 4;
    let form = AttentionForm { steps, vectors, rows: rows.next_power_of_two().min(FEW) };
    let [image_stride, head_stride, token_stride] = heads.strides();
    let sizes = [n, kept, mask.length, mask.first, n_keys, image_stride, head_stride, token_stride];
    let [a, b, c, d, e, f, g, h] = sizes.map(u32_of);
    let shape = AttentionLayoutLaunch::new(a, b, c, d, e, f, g, h, u32_of(mask.window.unwrap_or(0)));
    let (q_lanes, y_lanes) = if rows <= FEW { (4, 4) } else { (1, 2) };
    let (q_arg, k_arg, v_arg, y_arg) = (q.arg(q_lanes), k.arg(4), v.arg(4), y.arg(y_lanes));
    let (client, cap, hidden_arg) = (gpu.client(), mask.cap.unwrap_or(1.0), hidden.unwrap_or(q).arg(1));
    // SAFETY: a cube for each image, head of keys and tile of rows; after the last row or key, the last is read.
    unsafe {
        if rows <= FEW {
            let (cubes, dim) = (cubes(images * kept, 1), CubeDim::new_2d(32, attention::WARPS as u32));
            attention::attend_few::launch_unchecked(
                client, cubes, dim, q_arg, k_arg, v_arg, hidden_arg, y_arg, shape, mask.scale, cap, form, q.dtype,
            );
        } else {
            let cubes = cubes(images * kept, groups(rows, attention_mma::CUBE_ROWS));
            let dim = CubeDim::new_2d(32, attention_mma::WARPS as u32);
            attention_mma::attend_mma::launch_unchecked(
                client, cubes, dim, q_arg, k_arg, v_arg, hidden_arg, y_arg, shape, mask.scale, cap, form, q.dtype,
            );
        }
    }
    y
}
