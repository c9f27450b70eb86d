//! Rotary position embedding.
#![allow(unsafe_code)]

use super::loops::on_path;
use super::threads::rows_per_task;
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Sines and cosines of the rotation angles, one row per token: `[tokens, width / 2]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryTable {
    half: usize,
    sin: Vec<f32>,
    cos: Vec<f32>,
}

impl RotaryTable {
    /// Returns the table for tokens at these positions.
    ///
    /// The angle of a pair is `position * inverse_frequency`, in f32 like the reference.
    pub fn new(inverse_frequencies: &[f32], positions: impl IntoIterator<Item = usize>) -> Self {
        let (mut sin, mut cos) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in inverse_frequencies {
                let (of_sin, of_cos) = (position as f32 * frequency).sin_cos();
                sin.push(of_sin);
                cos.push(of_cos);
            }
        }
        Self { half: inverse_frequencies.len(), sin, cos }
    }

    /// Returns the table of negative angles, for rotating gradients back.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { sin: self.sin.iter().map(|sin| -sin).collect(), ..self.clone() }
    }

    /// Returns the sines, `[tokens, width / 2]`.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }

    /// Returns the cosines, `[tokens, width / 2]`.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }
}

/// Rotates the heads of tokens, `[.., tokens, heads, width]`, in place.
///
/// Features `i` and `i + width / 2` are a pair, and `(a, b)` becomes `(a cos - b sin, b cos + a sin)`. If there
/// are more tokens than rows of the table, its rows repeat.
///
/// # Panics
/// If `x` is not whole tokens with heads of the table's width.
pub fn rotate(x: &mut [f32], n_heads: usize, turns: &RotaryTable) {
    let n_cols = n_heads * 2 * turns.half;
    if x.is_empty() || n_cols == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(n_cols) && !turns.sin.is_empty(), "{} values in rows of {n_cols}", x.len());
    let (level, n_rows) = (active_level(), rows_per_task(x.len() / n_cols, n_cols));
    let run = |(at, x): (usize, &mut [f32])| on(level, x, at * n_rows, n_cols, turns);
    if n_rows * n_cols >= x.len() {
        run((0, x));
    } else {
        x.par_chunks_mut(n_rows * n_cols).enumerate().for_each(run);
    }
}

fn on(level: SimdLevel, x: &mut [f32], first: usize, n_cols: usize, turns: &RotaryTable) {
    on_path!(level, rows(x: &mut [f32], first: usize, n_cols: usize, turns: &RotaryTable));
}

#[inline(always)]
fn rows(x: &mut [f32], first: usize, n_cols: usize, turns: &RotaryTable) {
    let (half, n_turns) = (turns.half, turns.sin.len() / turns.half);
    for (row, x) in x.chunks_exact_mut(n_cols).enumerate() {
        let at = (first + row) % n_turns * half;
        let (sin, cos) = (&turns.sin[at..at + half], &turns.cos[at..at + half]);
        for head in x.chunks_exact_mut(2 * half) {
            let (a, b) = head.split_at_mut(half);
            for i in 0..half {
                let (x, y) = (a[i], b[i]);
                (a[i], b[i]) = (x * cos[i] - y * sin[i], y * cos[i] + x * sin[i]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_rotated_with_the_same_bits_on_every_path() {
        let turns = RotaryTable::new(&[1.0, 0.01], [0, 3, 5]);
        let x: Vec<f32> = (0..6 * 2 * 4).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let mut reference = x.clone();
        rotate(&mut reference, 2, &turns);
        assert_eq!(reference[..8], x[..8], "position 0 is not rotated");
        for (i, &value) in reference.iter().enumerate() {
            let (token, pair) = (i / 8 % 3, i % 2);
            let angle = f64::from([0.0_f32, 3.0, 5.0][token]) * [1.0, 0.01][pair];
            let [a, b] = [i / 4 * 4 + pair, i / 4 * 4 + pair + 2].map(|at| f64::from(x[at]));
            let exact = if i % 4 < 2 { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() };
            assert!((f64::from(value) - exact).abs() < 1e-5, "{i} {value} {exact}");
        }
        for level in SimdLevel::available() {
            let mut y = x.clone();
            on(level, &mut y[..24], 0, 8, &turns);
            on(level, &mut y[24..], 3, 8, &turns);
            assert_eq!(y, reference, "{level}");
        }
        rotate(&mut reference, 2, &turns.reversed());
        assert!(reference.iter().zip(&x).all(|(back, x)| (back - x).abs() < 1e-5), "turned back");
    }

    #[test]
    fn many_tokens_rotate_like_single_ones() {
        let turns = RotaryTable::new(&[1.0, 0.5, 0.25, 0.125], 0..700);
        let x: Vec<f32> = (0..700 * 16 * 8).map(|i| (i % 19) as f32 - 9.0).collect();
        let (mut all, mut one) = (x.clone(), x);
        rotate(&mut all, 16, &turns);
        one.chunks_mut(128).enumerate().for_each(|(at, x)| on(SimdLevel::SCALAR, x, at, 128, &turns));
        assert_eq!(all, one);
    }
}
