//! The gradients of attention, one head at a time.

use super::attend::HeadRows;
use super::attend_grad::attend_grad;
use super::attention::{AttentionShape, PAYS, part};
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes the gradients `[dq, dk, dv]` of [`attention`](super::attention()) from the gradient `dy` of its
/// outputs.
///
/// With attention weights `p`, which are recomputed: `dv = pᵀ dy`, `ds = p ∘ (dy vᵀ - Σ p ∘ dy vᵀ) /
/// sqrt(width)`, `dq = ds k` and `dk = dsᵀ q`. The gradient of a key or value head is the sum over the query
/// heads that share it.
///
/// Source: Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022,
/// appendix B.2.
///
/// # Panics
/// If the lengths do not match the shape.
pub fn attention_grad(
    shape: AttentionShape,
    [q, k, v]: [&[f32]; 3],
    padding: &[bool],
    dy: &[f32],
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    on_path(active_level(), shape, [q, k, v, dy], padding, [dq, dk, dv]);
}

fn on_path(
    level: SimdLevel,
    shape: AttentionShape,
    [q, k, v, dy]: [&[f32]; 4],
    padding: &[bool],
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    let (n, n_kv) = (shape.n_elements(), shape.n_elements() / shape.n_heads.max(1) * shape.n_kv_heads);
    assert_eq!([q.len(), k.len(), v.len(), dy.len()], [n, n_kv, n_kv, n], "queries, keys, values, gradients");
    assert_eq!([dq.len(), dk.len(), dv.len()], [n, n_kv, n_kv], "gradients of queries, keys, values");
    assert!(padding.is_empty() || padding.len() == shape.batch * shape.length, "padding of {shape:?}");
    if n == 0 {
        return;
    }
    let n_sequences = shape.batch;
    let run = |at: usize, dq: &mut [f32], dk: &mut [f32], dv: &mut [f32]| {
        let of_sequence = [q, k, v, dy].map(|all| part(all, at, n_sequences));
        heads(level, shape, of_sequence, part(padding, at, n_sequences), [dq, dk, dv]);
    };
    let (of_queries, of_keys) = (n / n_sequences, n_kv / n_sequences);
    if n_sequences > 1 && n * shape.length >= PAYS && rayon::current_num_threads() > 1 {
        let all = dq.par_chunks_mut(of_queries).zip(dk.par_chunks_mut(of_keys)).zip(dv.par_chunks_mut(of_keys));
        all.enumerate().for_each(|(at, ((dq, dk), dv))| run(at, dq, dk, dv));
    } else {
        let all = dq.chunks_mut(of_queries).zip(dk.chunks_mut(of_keys)).zip(dv.chunks_mut(of_keys));
        all.enumerate().for_each(|(at, ((dq, dk), dv))| run(at, dq, dk, dv));
    }
}

/// Computes the heads of one sequence.
fn heads(
    level: SimdLevel,
    shape: AttentionShape,
    [q, k, v, dy]: [&[f32]; 4],
    padding: &[bool],
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    let AttentionShape { length, n_heads, n_kv_heads, width, is_causal, .. } = shape;
    let mut scratch = SCRATCH.take();
    dk.fill(0.0);
    dv.fill(0.0);
    for head in 0..n_heads {
        let rows = |values, n, head| HeadRows::new(values, length, n * width, head * width, width);
        let kv_head = head * n_kv_heads / n_heads;
        let of_kv = [rows(k, n_kv_heads, kv_head), rows(v, n_kv_heads, kv_head)];
        let of_head = [rows(q, n_heads, head), of_kv[0], of_kv[1], rows(dy, n_heads, head)];
        attend_grad(level, of_head, (padding, is_causal), [dq, dk, dv], &mut scratch);
    }
    SCRATCH.set(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1999) as f32 / 500.0 - 2.0).collect()
    }

    /// Computes the gradients by definition, in f64.
    fn exact(shape: AttentionShape, [q, k, v, dy]: [&[f32]; 4], padding: &[bool]) -> [Vec<f64>; 3] {
        let AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal } = shape;
        let mut grads = [q, k, v].map(|of| vec![0.0; of.len()]);
        for (b, h, i) in
            (0..batch * n_heads * length).map(|at| (at / length / n_heads, at / length % n_heads, at % length))
        {
            let query = |c: usize| ((b * length + i) * n_heads + h) * width + c;
            let key = |j: usize, c: usize| ((b * length + j) * n_kv_heads + h * n_kv_heads / n_heads) * width + c;
            let is_seen = |&j: &usize| (padding.is_empty() || !padding[b * length + j]) && (j <= i || !is_causal);
            let seen: Vec<usize> = (0..length).filter(is_seen).collect();
            let dot = |a: &[f32], b: &[f32], j: usize| {
                (0..width).map(|c| f64::from(a[query(c)]) * f64::from(b[key(j, c)])).sum::<f64>()
            };
            let scale = 1.0 / (width as f64).sqrt();
            let weights: Vec<f64> = seen.iter().map(|&j| (dot(q, k, j) * scale).exp()).collect();
            let all: f64 = weights.iter().sum();
            let mean = seen.iter().zip(&weights).map(|(&j, weight)| weight / all * dot(dy, v, j)).sum::<f64>();
            for (&j, weight) in seen.iter().zip(&weights) {
                let score = weight / all * (dot(dy, v, j) - mean) * scale;
                for c in 0..width {
                    grads[0][query(c)] += score * f64::from(k[key(j, c)]);
                    grads[1][key(j, c)] += score * f64::from(q[query(c)]);
                    grads[2][key(j, c)] += weight / all * f64::from(dy[query(c)]);
                }
            }
        }
        grads
    }

    #[test]
    fn every_path_is_near_the_exact_gradients_at_awkward_shapes() {
        let shapes = [(1, 1, 1, 1, 1), (2, 5, 3, 3, 4), (1, 17, 2, 1, 32), (2, 70, 1, 1, 33), (1, 33, 6, 2, 64)];
        for (at, &(batch, length, n_heads, n_kv_heads, width)) in shapes.iter().chain(&shapes).enumerate() {
            let shape = AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal: at < shapes.len() };
            let (n, n_kv) = (shape.n_elements(), batch * length * n_kv_heads * width);
            let [q, k, v, dy] = [(1, n), (2, n_kv), (3, n_kv), (4, n)].map(|(seed, n)| floats(n, seed));
            let all = [&q[..], &k, &v, &dy];
            let some: Vec<bool> = (0..batch * length).map(|i| i % length > length / 2).collect();
            for padding in [&[][..], &some] {
                let exact = exact(shape, all, padding);
                for level in SimdLevel::available() {
                    let mut grads = [n, n_kv, n_kv].map(|n| vec![f32::NAN; n]);
                    on_path(level, shape, all, padding, grads.each_mut().map(Vec::as_mut_slice));
                    for (of, (found, exact)) in grads.iter().zip(&exact).enumerate() {
                        for (found, exact) in found.iter().zip(exact) {
                            let far = (f64::from(*found) - exact).abs();
                            assert!(far < 5e-5, "{level} {shape:?} gradient {of}: {found} {exact}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn many_sequences_have_the_gradients_of_each_alone() {
        let alone = AttentionShape { batch: 1, length: 64, n_heads: 4, n_kv_heads: 2, width: 16, is_causal: true };
        let shape = AttentionShape { batch: 5, ..alone };
        let n = shape.n_elements();
        let [q, k, v, dy] = [(1, n), (2, n / 2), (3, n / 2), (4, n)].map(|(seed, n)| floats(n, seed));
        let mut together = [n, n / 2, n / 2].map(|n| vec![0.0; n]);
        attention_grad(shape, [&q, &k, &v], &[], &dy, together.each_mut().map(Vec::as_mut_slice));
        for at in 0..5 {
            let [q, k, v, dy] = [&q, &k, &v, &dy].map(|all| part(all, at, 5));
            let mut grads = [n, n / 2, n / 2].map(|n| vec![0.0; n / 5]);
            attention_grad(alone, [q, k, v], &[], dy, grads.each_mut().map(Vec::as_mut_slice));
            assert!(grads.iter().zip(&together).all(|(grads, all)| grads == part(all, at, 5)), "sequence {at}");
        }
    }

    #[test]
    fn masked_scores_may_be_huge() {
        let shape = AttentionShape { batch: 1, length: 9, n_heads: 1, n_kv_heads: 1, width: 8, is_causal: true };
        let [mut q, mut k, v, dy] = [1, 2, 3, 4].map(|seed| floats(shape.n_elements(), seed));
        k[8 * 8..].fill(1e4);
        q[..8].fill(1e4);
        let mut grads = [0; 3].map(|_| vec![f32::NAN; shape.n_elements()]);
        attention_grad(shape, [&q, &k, &v], &[], &dy, grads.each_mut().map(Vec::as_mut_slice));
        assert!(grads.iter().flatten().all(|value| value.is_finite()), "{grads:?}");
    }
}
