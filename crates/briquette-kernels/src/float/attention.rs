//! Attention, a head at a time: scores never leave the cache.

use crate::path::{Path, active_path};
use crate::simd::{self, HeadRows};
use rayon::prelude::*;
use std::cell::RefCell;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 20;

/// The sizes of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens of a sequence; there are as many queries as keys.
    pub length: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a head.
    pub width: usize,
}

impl AttentionShape {
    /// Elements of queries, keys, values or outputs.
    pub const fn n_elements(&self) -> usize {
        self.batch * self.length * self.n_heads * self.width
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `softmax(q kᵀ / sqrt(width)) v` for every head, all `[batch, length, n_heads * width]`. Keys that are `padding`
/// (`[batch, length]`, empty for none) are not seen. A sequence that is padding throughout gives NaN.
///
/// # Panics
/// If the lengths disagree with the shape.
pub fn attention(shape: AttentionShape, q: &[f32], k: &[f32], v: &[f32], padding: &[bool], out: &mut [f32]) {
    let n = shape.n_elements();
    assert_eq!([q.len(), k.len(), v.len(), out.len()], [n; 4], "queries, keys, values and outputs of {shape:?}");
    assert!(padding.is_empty() || padding.len() == shape.batch * shape.length, "padding of {shape:?}");
    if n == 0 {
        return;
    }
    let (path, per_sequence) = (active_path(), n / shape.batch);
    let run = |(sequence, out): (usize, &mut [f32])| {
        let at = sequence * per_sequence..(sequence + 1) * per_sequence;
        let of_sequence =
            if padding.is_empty() { 0..0 } else { sequence * shape.length..(sequence + 1) * shape.length };
        heads(path, shape, [&q[at.clone()], &k[at.clone()], &v[at]], &padding[of_sequence], out);
    };
    if shape.batch > 1 && n * shape.length >= PAYS && rayon::current_num_threads() > 1 {
        out.par_chunks_mut(per_sequence).enumerate().for_each(run);
    } else {
        out.chunks_mut(per_sequence).enumerate().for_each(run);
    }
}

/// The heads of one sequence.
fn heads(path: Path, shape: AttentionShape, [q, k, v]: [&[f32]; 3], padding: &[bool], out: &mut [f32]) {
    let stride = shape.n_heads * shape.width;
    let mut scratch = SCRATCH.take();
    for head in 0..shape.n_heads {
        let rows = |values| HeadRows::new(values, shape.length, stride, head * shape.width, shape.width);
        simd::attend(path, [rows(q), rows(k), rows(v)], padding, out, &mut scratch);
    }
    SCRATCH.set(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1999) as f32 / 500.0 - 2.0).collect()
    }

    /// One output by the definition, in f64.
    fn exact(shape: AttentionShape, [q, k, v]: [&[f32]; 3], padding: &[bool], [b, i, h, c]: [usize; 4]) -> f64 {
        let at = |b: usize, i: usize, c: usize| ((b * shape.length + i) * shape.n_heads + h) * shape.width + c;
        let is_seen = |j: usize| padding.is_empty() || !padding[b * shape.length + j];
        let score = |j: usize| {
            let dot = (0..shape.width).map(|c| f64::from(q[at(b, i, c)]) * f64::from(k[at(b, j, c)])).sum::<f64>();
            (dot / (shape.width as f64).sqrt()).exp()
        };
        let seen: Vec<usize> = (0..shape.length).filter(|&j| is_seen(j)).collect();
        let all: f64 = seen.iter().map(|&j| score(j)).sum();
        seen.iter().map(|&j| score(j) * f64::from(v[at(b, j, c)])).sum::<f64>() / all
    }

    #[test]
    fn every_path_is_near_the_exact_attention_at_awkward_shapes() {
        for (batch, length, n_heads, width) in
            [(1, 1, 1, 1), (2, 5, 3, 4), (1, 17, 2, 32), (2, 70, 1, 33), (1, 33, 2, 64)]
        {
            let shape = AttentionShape { batch, length, n_heads, width };
            let [q, k, v] = [1, 2, 3].map(|seed| floats(shape.n_elements(), seed));
            let some: Vec<bool> = (0..batch * length).map(|i| i % length > length / 2).collect();
            for padding in [&[][..], &some] {
                for path in Path::available() {
                    let mut out = vec![f32::NAN; shape.n_elements()];
                    let per = shape.n_elements() / batch;
                    for b in 0..batch {
                        let at = b * per..(b + 1) * per;
                        let mask = if padding.is_empty() { 0..0 } else { b * length..(b + 1) * length };
                        let parts = [&q[at.clone()], &k[at.clone()], &v[at.clone()]];
                        heads(path, shape, parts, &padding[mask], &mut out[at]);
                    }
                    for (index, &value) in out.iter().enumerate() {
                        let (c, h) = (index % width, index / width % n_heads);
                        let (i, b) = (index / width / n_heads % length, index / per);
                        let exact = exact(shape, [&q, &k, &v], padding, [b, i, h, c]);
                        assert!((f64::from(value) - exact).abs() < 2e-5, "{path} {shape:?} {value} {exact}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_shows_only_where_it_is_seen() {
        let shape = AttentionShape { batch: 1, length: 20, n_heads: 1, width: 8 };
        let [mut q, k, v] = [1, 2, 3].map(|seed| floats(shape.n_elements(), seed));
        q[3 * 8] = f32::NAN;
        let mut out = vec![0.0; shape.n_elements()];
        attention(shape, &q, &k, &v, &[], &mut out);
        for (i, row) in out.chunks(8).enumerate() {
            assert_eq!(row.iter().any(|value| value.is_nan()), i == 3);
        }
    }
}
