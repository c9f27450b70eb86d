//! Cached attention equals attention without a cache, at awkward shapes and with a bias.

use super::*;
use crate::float::{AttentionShape, CacheType, attention};

fn floats(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1999) as f32 / 500.0 - 2.0).collect()
}

/// Returns attention of the last `n_new` of `length` tokens, and the same without a cache.
fn both(kind: CacheType, level: SimdLevel, [length, n_new, n_heads, n_kv, width]: [usize; 5]) -> [Vec<f32>; 2] {
    let [q, k, v] = [(1, n_heads), (2, n_kv), (3, n_kv)].map(|(seed, n)| floats(length * n * width, seed));
    let shape = AttentionShape { batch: 1, length, n_heads, n_kv_heads: n_kv, width, is_causal: true };
    let mut whole = vec![0.0; q.len()];
    attention(shape, &q, &k, &v, &[], &mut whole);
    let mut rows = [CachedRows::keys(kind, n_kv, width), CachedRows::values(kind, n_kv, width)];
    rows[0].push(&k[..width * n_kv]);
    rows[0].push(&k[width * n_kv..]);
    rows[1].push(&v);
    let first = (length - n_new) * n_heads * width;
    let mut out = vec![f32::NAN; q.len() - first];
    on(level, &q[first..], n_heads, [&rows[0], &rows[1]], (ScoreRule::default(), None), &mut out);
    [out, whole.split_off(first)]
}

#[test]
fn cached_attention_equals_attention_at_awkward_shapes() {
    let shapes = [[1, 1, 1, 1, 1], [5, 1, 3, 3, 4], [17, 4, 2, 1, 32], [70, 1, 9, 3, 64], [33, 33, 6, 2, 33]];
    for shape in shapes {
        for (kind, most) in [(CacheType::F32, 2e-5), (CacheType::F16, 4e-3), (CacheType::Int8, 5e-2)] {
            let [scalar, _] = both(kind, SimdLevel::SCALAR, shape);
            for level in SimdLevel::available() {
                let [found, expected] = both(kind, level, shape);
                assert_eq!(found, scalar, "{level} {kind} {shape:?}");
                for (a, b) in found.iter().zip(&expected) {
                    assert!((a - b).abs() < most, "{level} {kind} {shape:?} {a} {b}");
                }
            }
        }
    }
}

#[test]
fn a_bias_is_added_to_the_scores_of_each_head() {
    let (n_tokens, n_new, n_heads, n_kv, width) = (19, 3, 4, 2, 5);
    let [q, k, v] =
        [(1, n_new * n_heads), (2, n_tokens * n_kv), (3, n_tokens * n_kv)].map(|(seed, n)| floats(n * width, seed));
    let bias = floats(n_heads * n_new * n_tokens, 4);
    let mut rows = [CachedRows::keys(CacheType::F32, n_kv, width), CachedRows::values(CacheType::F32, n_kv, width)];
    rows[0].push(&k);
    rows[1].push(&v);
    for soft_cap in [None, Some(1.5_f32)] {
        let rule = (ScoreRule { soft_cap, ..ScoreRule::default() }, Some(bias.as_slice()));
        let mut found = vec![f32::NAN; q.len()];
        on(SimdLevel::SCALAR, &q, n_heads, rows.each_ref(), rule, &mut found);
        for level in SimdLevel::available() {
            let mut other = vec![f32::NAN; q.len()];
            on(level, &q, n_heads, rows.each_ref(), rule, &mut other);
            assert_eq!(other, found, "{level}");
        }
        for (token, head) in (0..n_new).flat_map(|token| (0..n_heads).map(move |head| (token, head))) {
            let n_seen = n_tokens - n_new + token + 1;
            let row = |values: &[f32], at: usize| values[at * width..(at + 1) * width].to_vec();
            let query = row(&q, token * n_heads + head);
            let score = |key: usize| {
                let key_row = row(&k, key * n_kv + head / 2);
                let score = query.iter().zip(&key_row).map(|(a, b)| a * b).sum::<f32>() / (width as f32).sqrt();
                let score = soft_cap.map_or(score, |cap| cap * (score / cap).tanh());
                (score + bias[(head * n_new + token) * n_tokens + key]).exp()
            };
            let sum: f32 = (0..n_seen).map(score).sum();
            for at in 0..width {
                let value = |key: usize| score(key) / sum * v[(key * n_kv + head / 2) * width + at];
                let expected: f32 = (0..n_seen).map(value).sum();
                let found = found[(token * n_heads + head) * width + at];
                assert!((found - expected).abs() < 1e-4, "{token} {head} {at}: {found} {expected}");
            }
        }
    }
}

#[test]
fn f16_conversion_agrees_with_the_half_crate() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (widened(bits), half::f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && !theirs.is_finite()), "{bits:#x}");
    }
}

#[test]
fn non_finite_values_are_never_lost() {
    for kind in CacheType::ALL {
        for infinite in [0, 1] {
            let mut rows = [CachedRows::keys(kind, 1, 4), CachedRows::values(kind, 1, 4)];
            for (at, rows) in rows.iter_mut().enumerate() {
                rows.push(&[1.0, if at == infinite { f32::INFINITY } else { 2.0 }, 0.5, 0.0]);
            }
            let mut out = [0.0; 4];
            cached_attention(&[1.0; 4], 1, rows.each_ref(), ScoreRule::default(), &mut out);
            assert!(out.iter().any(|value| !value.is_finite()), "{kind} {out:?}");
        }
    }
}

#[test]
#[should_panic(expected = "2 queries of 1 tokens")]
fn more_queries_than_keys_are_refused() {
    let mut rows = [CachedRows::keys(CacheType::F32, 1, 2), CachedRows::values(CacheType::F32, 1, 2)];
    rows.iter_mut().for_each(|rows| rows.push(&[1.0, 2.0]));
    cached_attention(&[1.0; 4], 1, rows.each_ref(), ScoreRule::default(), &mut [0.0; 4]);
}
