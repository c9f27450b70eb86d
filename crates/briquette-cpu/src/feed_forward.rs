//! Feed-forward blocks: two int8 products with an activation function between them.
//!
//! Intermediate values never leave the cache.

use crate::activations::InputRounding;
use crate::linear::multiply_rows;
use crate::panels::threads_for;
use crate::quantize_rows::{QuantizedRows, rows_at_once};
use crate::simd::OutputBlock;
use crate::weights::Int8Weights;
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;
use std::cell::RefCell;

/// The most rows that pass through both products together.
const ROWS: usize = 128;
/// The fewest rows that justify another thread.
const PART: usize = 16;
/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 22;

thread_local! {
    static WIDE: RefCell<WideRows> = RefCell::default();
}

/// The two layers of a feed-forward block.
pub struct FeedForward<'a> {
    /// Weights and bias of the first and second layer.
    pub layers: [(&'a dyn Int8Weights, Option<&'a [f32]>); 2],
    /// How the inputs of each layer are quantized.
    pub inputs: [InputRounding<'a>; 2],
    /// The activation function, applied in place to a few rows of the first layer's outputs.
    pub activation: fn(SimdLevel, &mut [f32]),
}

/// Computes `y = activation(x · upᵀ + bias) · downᵀ + bias` for rows `[n_rows, n_in]`.
///
/// Each product and rounding is that of [`int8_linear`](crate::int8_linear).
///
/// # Panics
/// If the lengths do not match the shapes of the weights.
pub fn int8_feed_forward(level: SimdLevel, x: &[f32], n_rows: usize, block: &FeedForward, y: &mut [f32]) {
    let [(up, _), (down, _)] = block.layers;
    let (n_in, n_out) = (up.n_in(), down.n_out());
    assert_eq!(
        (x.len(), y.len()),
        (n_rows * n_in, n_rows * n_out),
        "rows of [{n_rows}, {n_in}] and [{n_rows}, {n_out}]"
    );
    assert_eq!(down.n_in(), up.n_out(), "outputs of the first layer, inputs of the second");
    if n_rows * n_in * n_out == 0 {
        return y.fill(0.0);
    }
    let n_threads = threads_for(n_rows * up.n_out() * (n_in + n_out), PAYS);
    // With few rows, threads share the panels of a product instead.
    let n_parts = n_rows.div_ceil(ROWS).max(if n_rows >= 2 * PART * n_threads { n_threads } else { 1 });
    let (n_at_once, n_for_each) = (n_rows.div_ceil(n_parts), if n_parts < n_threads { n_threads } else { 1 });
    let run = |(x, y): (&[f32], &mut [f32])| {
        let mut rows = WIDE.take();
        rows.take_through(level, x, block, y, n_for_each);
        WIDE.set(rows);
    };
    if n_threads > n_for_each {
        x.par_chunks(n_at_once * n_in).zip(y.par_chunks_mut(n_at_once * n_out)).for_each(run);
    } else {
        x.chunks(n_at_once * n_in).zip(y.chunks_mut(n_at_once * n_out)).for_each(run);
    }
}

/// Memory for the values between the products.
#[derive(Default)]
struct WideRows {
    codes: QuantizedRows,
    floats: Vec<f32>,
}

impl WideRows {
    fn take_through(&mut self, level: SimdLevel, x: &[f32], block: &FeedForward, y: &mut [f32], n_threads: usize) {
        let [(up, up_bias), (down, down_bias)] = block.layers;
        let (n_rows, n) = (x.len() / up.n_in(), up.n_out());
        self.codes.fill(level, x, up.n_in(), n_rows, block.inputs[0]);
        self.floats.resize(n_rows * n, 0.0);
        multiply_rows(level, self.codes.block(), up, up_bias, OutputBlock::new(&mut self.floats, n_rows, n), n_threads);
        self.codes.make_room(n_rows, n);
        let n_at_once = rows_at_once(n);
        for (index, rows) in self.floats.chunks_mut(n_at_once * n.max(1)).enumerate() {
            (block.activation)(level, rows);
            self.codes.fill_part(level, rows, index * n_at_once, block.inputs[1]);
        }
        multiply_rows(level, self.codes.block(), down, down_bias, OutputBlock::new(y, n_rows, down.n_out()), n_threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::tests::{floats, packed, sparse};
    use crate::{ActivationGrid, int8_linear};

    fn halve(_: SimdLevel, x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = if *x < 0.0 { *x / 2.0 } else { *x });
    }

    #[test]
    fn feed_forward_equals_two_products_and_the_activation() {
        for (n_rows, n_in, n, n_out) in [(1, 5, 7, 3), (3, 64, 33, 40), (65, 31, 130, 1), (200, 40, 300, 70)] {
            let (up, down) = (packed(n, n_in, 1), sparse(n_out, n, 2));
            let (x, bias) = (floats(n_rows * n_in, 3), floats(n, 4));
            let grids = [ActivationGrid::Asymmetric, ActivationGrid::Symmetric];
            let inputs = grids.map(InputRounding::from);
            let block = FeedForward { layers: [(&up, Some(&bias)), (&down, None)], inputs, activation: halve };
            for level in SimdLevel::available() {
                let (mut between, mut slow, mut fast) =
                    (vec![0.0; n_rows * n], vec![0.0; n_rows * n_out], vec![f32::NAN; n_rows * n_out]);
                int8_linear(level, &x, n_rows, grids[0], &up, Some(&bias), &mut between);
                halve(level, &mut between);
                int8_linear(level, &between, n_rows, grids[1], &down, None, &mut slow);
                int8_feed_forward(level, &x, n_rows, &block, &mut fast);
                assert_eq!(fast, slow, "{level} [{n_rows}, {n_in}, {n}, {n_out}]");
            }
        }
    }

    #[test]
    fn non_finite_rows_are_nan_and_do_not_affect_others() {
        let (up, down, mut x, mut y) = (packed(8, 4, 1), packed(3, 8, 2), floats(12, 3), [0.0; 9]);
        x[5] = f32::INFINITY;
        let inputs = [InputRounding::default(); 2];
        let block = FeedForward { layers: [(&up, None), (&down, None)], inputs, activation: halve };
        int8_feed_forward(SimdLevel::SCALAR, &x, 3, &block, &mut y);
        assert_eq!(y.map(f32::is_nan), [false, false, false, true, true, true, false, false, false]);
        int8_feed_forward(SimdLevel::SCALAR, &[], 0, &block, &mut []);
    }
}
