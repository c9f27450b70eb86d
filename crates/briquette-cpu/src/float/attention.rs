//! Attention, one head at a time, so that scores never leave the cache.

use super::attend::{HeadRows, attend};
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;
use std::cell::RefCell;

/// Below this many multiplications, waking another thread costs more than it saves.
pub(super) const PAYS: usize = 1 << 20;

/// The sizes of queries, keys and values, and the causal mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens in a sequence: the number of queries and of keys.
    pub length: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads, each shared by the same number of neighbouring query heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether to mask the keys after each query.
    pub is_causal: bool,
}

impl AttentionShape {
    /// Returns the number of elements of queries or outputs.
    pub const fn n_elements(&self) -> usize {
        self.batch * self.length * self.n_heads * self.width
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes `softmax(q kᵀ / sqrt(width)) v` for every head.
///
/// All arrays are `[batch, length, n_heads * width]`, keys and values with their number of heads. Keys with
/// `padding` (`[batch, length]`, empty for none) are masked. A sequence of only padding gives NaN.
///
/// # Panics
/// If the lengths do not match the shape.
pub fn attention(shape: AttentionShape, q: &[f32], k: &[f32], v: &[f32], padding: &[bool], out: &mut [f32]) {
    on_path(active_level(), shape, [q, k, v], padding, out);
}

fn on_path(level: SimdLevel, shape: AttentionShape, [q, k, v]: [&[f32]; 3], padding: &[bool], out: &mut [f32]) {
    let (n, n_kv) = (shape.n_elements(), shape.n_elements() / shape.n_heads.max(1) * shape.n_kv_heads);
    assert_eq!([q.len(), k.len(), v.len(), out.len()], [n, n_kv, n_kv, n], "queries, keys, values, outputs");
    assert!(padding.is_empty() || padding.len() == shape.batch * shape.length, "padding of {shape:?}");
    if n == 0 {
        return;
    }
    let (n_sequences, per_sequence) = (shape.batch, n / shape.batch);
    let run = |(at, out): (usize, &mut [f32])| {
        heads(level, shape, [q, k, v].map(|all| part(all, at, n_sequences)), part(padding, at, n_sequences), out);
    };
    if shape.batch > 1 && n * shape.length >= PAYS && rayon::current_num_threads() > 1 {
        out.par_chunks_mut(per_sequence).enumerate().for_each(run);
    } else {
        out.chunks_mut(per_sequence).enumerate().for_each(run);
    }
}

/// Returns part `index` of `n` equal parts.
pub(super) fn part<T>(values: &[T], index: usize, n: usize) -> &[T] {
    &values[index * (values.len() / n)..][..values.len() / n]
}

/// Computes the heads of one sequence.
fn heads(level: SimdLevel, shape: AttentionShape, [q, k, v]: [&[f32]; 3], padding: &[bool], out: &mut [f32]) {
    let AttentionShape { length, n_heads, n_kv_heads, width, is_causal, .. } = shape;
    let mut scratch = SCRATCH.take();
    for head in 0..n_heads {
        let rows = |values, n, head| HeadRows::new(values, length, n * width, head * width, width);
        let kv_head = head * n_kv_heads / n_heads;
        let of_head = [rows(q, n_heads, head), rows(k, n_kv_heads, kv_head), rows(v, n_kv_heads, kv_head)];
        attend(level, of_head, (padding, is_causal), out, &mut scratch);
    }
    SCRATCH.set(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1999) as f32 / 500.0 - 2.0).collect()
    }

    /// Computes one output by definition, in f64.
    fn exact(shape: AttentionShape, [q, k, v]: [&[f32]; 3], padding: &[bool], [b, i, h, c]: [usize; 4]) -> f64 {
        let AttentionShape { length, n_heads: n, n_kv_heads: n_kv, width, is_causal, .. } = shape;
        let at = |heads: usize, i: usize, c: usize| ((b * length + i) * heads + h * heads / n) * width + c;
        let is_seen = |&j: &usize| (padding.is_empty() || !padding[b * length + j]) && (j <= i || !is_causal);
        let score = |j: usize| {
            let dot = (0..width).map(|c| f64::from(q[at(n, i, c)]) * f64::from(k[at(n_kv, j, c)])).sum::<f64>();
            (dot / (width as f64).sqrt()).exp()
        };
        let seen: Vec<usize> = (0..length).filter(is_seen).collect();
        let all: f64 = seen.iter().map(|&j| score(j)).sum();
        seen.iter().map(|&j| score(j) * f64::from(v[at(n_kv, j, c)])).sum::<f64>() / all
    }

    #[test]
    fn every_path_is_near_the_exact_attention_at_awkward_shapes() {
        let shapes = [(1, 1, 1, 1, 1), (2, 5, 3, 3, 4), (1, 17, 2, 1, 32), (2, 70, 1, 1, 33), (1, 33, 6, 2, 64)];
        for (at, &(batch, length, n_heads, n_kv_heads, width)) in shapes.iter().chain(&shapes).enumerate() {
            let shape = AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal: at < shapes.len() };
            let (n, n_kv) = (shape.n_elements(), batch * length * n_kv_heads * width);
            let [q, k, v] = [(1, n), (2, n_kv), (3, n_kv)].map(|(seed, n)| floats(n, seed));
            let some: Vec<bool> = (0..batch * length).map(|i| i % length > length / 2).collect();
            for (level, padding) in
                SimdLevel::available().into_iter().flat_map(|level| [(level, &[][..]), (level, &some)])
            {
                let mut out = vec![f32::NAN; n];
                on_path(level, shape, [&q, &k, &v], padding, &mut out);
                for (index, &value) in out.iter().enumerate() {
                    let (b, i) = (index / (n / batch), index / width / n_heads % length);
                    let exact = exact(shape, [&q, &k, &v], padding, [b, i, index / width % n_heads, index % width]);
                    assert!((f64::from(value) - exact).abs() < 2e-5, "{level} {shape:?} {value} {exact}");
                }
            }
        }
    }

    #[test]
    fn non_finite_values_affect_only_queries_that_attend_to_them() {
        let shape = AttentionShape { batch: 1, length: 20, n_heads: 1, n_kv_heads: 1, width: 8, is_causal: false };
        let [mut q, k, v] = [1, 2, 3].map(|seed| floats(shape.n_elements(), seed));
        q[3 * 8] = f32::NAN;
        let mut out = vec![0.0; shape.n_elements()];
        attention(shape, &q, &k, &v, &[], &mut out);
        for (i, row) in out.chunks(8).enumerate() {
            assert_eq!(row.iter().any(|value| value.is_nan()), i == 3);
        }
    }
}
