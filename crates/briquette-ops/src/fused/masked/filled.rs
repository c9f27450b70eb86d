//! Large vectors that threads fill in parts, without a separate pass that zeroes them.
#![allow(unsafe_code)]

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Returns `n` numbers; `fill` gets each `chunk` and its index.
///
/// The thread that fills a chunk zeroes it first, while it is in cache.
///
/// # Panics
/// If `chunk` is 0.
pub(crate) fn filled(n: usize, chunk: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut values = Vec::with_capacity(n);
    let room = &mut values.spare_capacity_mut()[..n];
    room.par_chunks_mut(chunk).enumerate().for_each(|(i, chunk)| {
        chunk.fill(MaybeUninit::new(0.0));
        // SAFETY: the line above wrote every element.
        fill(i, unsafe { chunk.assume_init_mut() });
    });
    // SAFETY: the chunks cover all `n` elements, and each was written.
    unsafe { values.set_len(n) };
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_zero_or_filled() {
        for (n, chunk) in [(0, 4), (1, 4), (4, 4), (1001, 10), (5, 100)] {
            let values = filled(n, chunk, |i, values| {
                if i % 2 == 0 {
                    values.iter_mut().enumerate().for_each(|(at, value)| *value = (i * chunk + at) as f32);
                }
            });
            let expected: Vec<f32> = (0..n).map(|at| if at / chunk % 2 == 0 { at as f32 } else { 0.0 }).collect();
            assert_eq!(values, expected);
        }
    }
}
