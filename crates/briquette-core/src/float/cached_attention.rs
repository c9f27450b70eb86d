//! Attention of new tokens to all that are kept.
#![allow(unsafe_code)]

use super::cached_rows::{CachedRows, KeptValues};
use super::isa::Isa;
use super::loops::{exp, on_path, reduce};
use super::path::{Path, active_path};
use rayon::prelude::*;
use std::cell::RefCell;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 18;
/// f32 holds the exponent of f16 this many powers higher.
const HALF_BIAS: f32 = 5.192_297e33;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `softmax(q kᵀ / sqrt(width)) v` of queries `[tokens, n_heads * width]`, which belong to the last of the tokens whose keys and values are
/// kept; each sees those up to its own. Keys and values may have fewer heads than queries, each for as many neighbouring ones.
///
/// # Panics
/// If the lengths disagree, or there are more queries than keys.
pub fn cached_attention(q: &[f32], n_heads: usize, [keys, values]: [&CachedRows; 2], out: &mut [f32]) {
    on(active_path(), q, n_heads, [keys, values], out);
}

fn on(path: Path, q: &[f32], n_heads: usize, [keys, values]: [&CachedRows; 2], out: &mut [f32]) {
    let (width, n_kv_heads, n_tokens) = (keys.width, keys.n_heads, keys.n_tokens());
    if q.is_empty() {
        return;
    }
    assert!(values.n_tokens() == n_tokens && values.width == width && values.n_heads == n_kv_heads, "keys and values");
    assert!(q.len() == out.len() && q.len().is_multiple_of(n_heads * width), "queries and outputs");
    assert!(n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads over {n_kv_heads}");
    let n_new = q.len() / (n_heads * width);
    assert!(n_new <= n_tokens, "{n_new} queries of {n_tokens} tokens");
    let of_head = n_heads / n_kv_heads * width;
    // Heads that share keys lie side by side.
    let run = |(at, (q, out)): (usize, (&[f32], &mut [f32]))| {
        let n_seen = n_tokens - n_new + at / n_kv_heads + 1;
        attend(path, q, [keys, values], at % n_kv_heads, n_seen, out);
    };
    if q.len() * n_tokens >= PAYS && rayon::current_num_threads() > 1 {
        q.par_chunks(of_head).zip(out.par_chunks_mut(of_head)).enumerate().for_each(run);
    } else {
        q.chunks(of_head).zip(out.chunks_mut(of_head)).enumerate().for_each(run);
    }
}

/// The queries of one token that share head `head` of keys and values.
fn attend(path: Path, q: &[f32], [keys, values]: [&CachedRows; 2], head: usize, n_seen: usize, out: &mut [f32]) {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    scratch.resize(q.len() / keys.width * n_seen + keys.width, 0.0);
    let (row, weights) = scratch.split_at_mut(keys.width);
    let (keys, values) = (KeptHead { rows: keys, head }, KeptHead { rows: values, head });
    on_path!(path, all(q: &[f32], keys: KeptHead, values: KeptHead, row: &mut [f32], weights: &mut [f32], out: &mut [f32]));
    SCRATCH.set(scratch);
}

/// One head of kept rows.
#[derive(Clone, Copy)]
struct KeptHead<'a> {
    rows: &'a CachedRows,
    head: usize,
}

impl KeptHead<'_> {
    /// The values of a token.
    #[inline(always)]
    fn read(&self, token: usize, row: &mut [f32]) {
        let at = token * self.rows.n_heads + self.head;
        let (first, n) = (at * self.rows.width, row.len());
        match &self.rows.kept {
            KeptValues::F32(values) => row.copy_from_slice(&values[first..first + n]),
            KeptValues::F16(bits) => {
                let bits = &bits[first..first + n];
                for i in 0..n {
                    row[i] = widened(bits[i]);
                }
            }
            KeptValues::Int8(codes, scales) => {
                let (codes, scale) = (&codes[first..first + n], scales[at]);
                for i in 0..n {
                    row[i] = f32::from(codes[i]) * scale;
                }
            }
        }
    }
}

/// A number of 16 bits; what is not finite is NaN.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * HALF_BIAS;
    let value = f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16);
    if bits & 0x7c00 == 0x7c00 { f32::NAN } else { value }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "adapters of iterators stay calls here")]
fn all(q: &[f32], keys: KeptHead, values: KeptHead, row: &mut [f32], weights: &mut [f32], out: &mut [f32]) {
    let (width, n_queries) = (row.len(), q.len() / row.len());
    let n_seen = weights.len() / n_queries;
    let scale = 1.0 / (width as f32).sqrt();
    for token in 0..n_seen {
        keys.read(token, row);
        for query in 0..n_queries {
            weights[query * n_seen + token] = dot(&q[query * width..(query + 1) * width], row) * scale;
        }
    }
    for query in 0..n_queries {
        softmax(&mut weights[query * n_seen..(query + 1) * n_seen]);
    }
    for i in 0..out.len() {
        out[i] = 0.0;
    }
    for token in 0..n_seen {
        values.read(token, row);
        for query in 0..n_queries {
            let (weight, out) = (weights[query * n_seen + token], &mut out[query * width..(query + 1) * width]);
            for i in 0..width {
                out[i] = weight.mul_add(row[i], out[i]);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "adapters of iterators stay calls here")]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (whole_a, rest_a) = a.as_chunks::<16>();
    let (whole_b, rest_b) = b.as_chunks::<16>();
    for at in 0..whole_a.len() {
        for i in 0..16 {
            lanes[i] = whole_a[at][i].mul_add(whole_b[at][i], lanes[i]);
        }
    }
    for i in 0..rest_a.len() {
        lanes[i] = rest_a[i].mul_add(rest_b[i], lanes[i]);
    }
    // Halves on halves, as vectors are added up.
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[inline(always)]
fn softmax(row: &mut [f32]) {
    let larger = |a: f32, b: f32| if a < b { b } else { a };
    let max = reduce(row, f32::NEG_INFINITY, larger, larger);
    for i in 0..row.len() {
        row[i] = exp(row[i] - max);
    }
    let inverse = 1.0 / reduce(row, 0.0, |sum, value| sum + value, |a, b| a + b);
    for i in 0..row.len() {
        row[i] *= inverse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{AttentionShape, CacheType, attention};

    fn floats(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1999) as f32 / 500.0 - 2.0).collect()
    }

    /// Attention of the last `n_new` of `length` tokens, and the same without a cache.
    fn both(kind: CacheType, path: Path, [length, n_new, n_heads, n_kv, width]: [usize; 5]) -> [Vec<f32>; 2] {
        let [q, k, v] = [(1, n_heads), (2, n_kv), (3, n_kv)].map(|(seed, n)| floats(length * n * width, seed));
        let shape = AttentionShape { batch: 1, length, n_heads, n_kv_heads: n_kv, width, is_causal: true };
        let mut whole = vec![0.0; q.len()];
        attention(shape, &q, &k, &v, &[], &mut whole);
        let mut rows = [CachedRows::new(kind, n_kv, width), CachedRows::new(kind, n_kv, width)];
        rows[0].push(&k[..width * n_kv]);
        rows[0].push(&k[width * n_kv..]);
        rows[1].push(&v);
        let first = (length - n_new) * n_heads * width;
        let mut out = vec![f32::NAN; q.len() - first];
        on(path, &q[first..], n_heads, [&rows[0], &rows[1]], &mut out);
        [out, whole.split_off(first)]
    }

    #[test]
    fn it_is_attention_without_a_cache_at_awkward_shapes() {
        let shapes = [[1, 1, 1, 1, 1], [5, 1, 3, 3, 4], [17, 4, 2, 1, 32], [70, 1, 9, 3, 64], [33, 33, 6, 2, 33]];
        for shape in shapes {
            for (kind, most) in [(CacheType::F32, 2e-5), (CacheType::F16, 4e-3), (CacheType::Int8, 5e-2)] {
                let [scalar, _] = both(kind, Path::SCALAR, shape);
                for path in Path::available() {
                    let [found, expected] = both(kind, path, shape);
                    assert_eq!(found, scalar, "{path} {kind} {shape:?}");
                    for (a, b) in found.iter().zip(&expected) {
                        assert!((a - b).abs() < most, "{path} {kind} {shape:?} {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_number_of_16_bits_is_widened_as_the_library_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widened(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && !theirs.is_finite()), "{bits:#x}");
        }
    }

    #[test]
    fn what_is_not_finite_is_never_hidden() {
        for kind in CacheType::ALL {
            let mut rows = CachedRows::new(kind, 1, 4);
            rows.push(&[1.0, f32::INFINITY, 0.5, 0.0]);
            let mut out = [0.0; 4];
            cached_attention(&[1.0; 4], 1, [&rows, &rows], &mut out);
            assert!(out.iter().any(|value| value.is_nan()), "{kind} {out:?}");
        }
    }

    #[test]
    #[should_panic(expected = "2 queries of 1 tokens")]
    fn more_queries_than_keys_are_refused() {
        let mut rows = CachedRows::new(CacheType::F32, 1, 2);
        rows.push(&[1.0, 2.0]);
        cached_attention(&[1.0; 4], 1, [&rows, &rows], &mut [0.0; 4]);
    }
}
