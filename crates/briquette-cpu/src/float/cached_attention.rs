//! Attention of new tokens to cached keys and values.
#![allow(unsafe_code)]

use super::cached_rows::{BLOCK, CachedRows, CachedValues};
use super::lanes::FloatLanes;
use super::loops::on_path;
use super::score_rule::ScoreRule;
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::cell::RefCell;

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 18;
/// 2^112: the factor between equal exponent bits in f32 and f16.
const HALF_BIAS: f32 = 5.192_297e33;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes `softmax(q kᵀ / sqrt(width)) v` with cached keys and values.
///
/// The queries `[tokens, n_heads * width]` belong to the last cached tokens; each attends to keys up to its
/// own. Keys and values may have fewer heads than queries, each shared by the same number of neighbouring query
/// heads.
///
/// `rule` limits the scores and the tokens that a query sees.
///
/// # Panics
/// - If the lengths disagree.
/// - If there are more queries than keys.
pub fn cached_attention(q: &[f32], n_heads: usize, rows: [&CachedRows; 2], rule: ScoreRule, out: &mut [f32]) {
    on(active_level(), q, n_heads, rows, (rule, None), out);
}

/// Computes [`cached_attention`] with a bias `[n_heads, queries, tokens]`, which is added to the scores after the soft cap
/// and before the softmax.
///
/// # Panics
/// See [`cached_attention`]; if the bias has another length.
pub fn biased_cached_attention(
    q: &[f32],
    n_heads: usize,
    rows: [&CachedRows; 2],
    rule: (ScoreRule, Option<&[f32]>),
    out: &mut [f32],
) {
    on(active_level(), q, n_heads, rows, rule, out);
}

fn on(
    level: SimdLevel,
    q: &[f32],
    n_heads: usize,
    [keys, values]: [&CachedRows; 2],
    (rule, bias): (ScoreRule, Option<&[f32]>),
    out: &mut [f32],
) {
    let (width, n_kv_heads, n_tokens) = (keys.width, keys.n_heads, keys.n_tokens());
    if q.is_empty() {
        return;
    }
    assert!(keys.is_keys() && !values.is_keys(), "keys, then values");
    assert!(values.n_tokens() == n_tokens && values.width == width && values.n_heads == n_kv_heads, "keys and values");
    assert!(q.len() == out.len() && q.len().is_multiple_of(n_heads * width), "queries and outputs");
    assert!(n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads over {n_kv_heads}");
    let n_new = q.len() / (n_heads * width);
    assert!(n_new <= n_tokens, "{n_new} queries of {n_tokens} tokens");
    let of_head = n_heads / n_kv_heads * width;
    let stride = n_new * n_tokens;
    assert!(bias.is_none_or(|bias| bias.len() == n_heads * stride), "a bias for each head, query and token");
    // Query heads that share keys are contiguous.
    let run = |(at, (q, out)): (usize, (&[f32], &mut [f32]))| {
        let (token, head) = (at / n_kv_heads, at % n_kv_heads);
        let first = head * (n_heads / n_kv_heads) * stride + token * n_tokens;
        let rule = HeadRule { rule, bias: bias.map(|bias| (&bias[first..], stride)) };
        attend(level, q, [keys, values], (head, rule), n_tokens - n_new + token + 1, out);
    };
    if q.len() * n_tokens >= PAYS && rayon::current_num_threads() > 1 {
        q.par_chunks(of_head).zip(out.par_chunks_mut(of_head)).enumerate().for_each(run);
    } else {
        q.chunks(of_head).zip(out.chunks_mut(of_head)).enumerate().for_each(run);
    }
}

/// Computes the queries of one token that share key and value head `head`.
fn attend(
    level: SimdLevel,
    q: &[f32],
    [keys, values]: [&CachedRows; 2],
    (head, rule): (usize, HeadRule),
    n_seen: usize,
    out: &mut [f32],
) {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let n_of_block = keys.width.next_multiple_of(BLOCK) * BLOCK;
    scratch.resize(q.len() / keys.width * n_seen + n_of_block, 0.0);
    let (block, weights) = scratch.split_at_mut(n_of_block);
    let (keys, values) = (CachedHead { rows: keys, head, rule }, CachedHead { rows: values, head, rule });
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { avx512(q, keys, values, block, weights, out) },
        _ => {
            on_path!(level, plain(q: &[f32], keys: CachedHead, values: CachedHead, block: &mut [f32], weights: &mut [f32], out: &mut [f32]))
        }
    }
    SCRATCH.set(scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
fn avx512(q: &[f32], keys: CachedHead, values: CachedHead, block: &mut [f32], weights: &mut [f32], out: &mut [f32]) {
    all::<std::arch::x86_64::__m512>(q, keys, values, block, weights, out);
}

#[inline(always)]
fn plain(q: &[f32], keys: CachedHead, values: CachedHead, block: &mut [f32], weights: &mut [f32], out: &mut [f32]) {
    all::<[f32; BLOCK]>(q, keys, values, block, weights, out);
}

/// The rule of a query's scores, and its bias for each key with the distance between the biases of two query heads.
#[derive(Clone, Copy)]
struct HeadRule<'a> {
    rule: ScoreRule,
    bias: Option<(&'a [f32], usize)>,
}

impl HeadRule<'_> {
    /// Turns the scores of a query head, counted from the first that shares its keys, into weights that sum to 1.
    #[inline(always)]
    fn weigh(self, query: usize, scores: &mut [f32]) {
        let Some((bias, stride)) = self.bias else { return self.rule.weigh(scores) };
        self.rule.cap(scores);
        scores.iter_mut().zip(&bias[query * stride..]).for_each(|(score, bias)| *score += bias);
        ScoreRule { soft_cap: None, ..self.rule }.weigh(scores);
    }
}

/// One head of cached rows, and the rule of its scores.
#[derive(Clone, Copy)]
struct CachedHead<'a> {
    rows: &'a CachedRows,
    head: usize,
    rule: HeadRule<'a>,
}

impl<'a> CachedHead<'a> {
    /// Returns the keys of 16 tokens, `[width][16]`, and a factor for the keys of each token.
    ///
    /// May write the keys to `scratch`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
    fn keys(&self, block: usize, scratch: &'a mut [f32]) -> (&'a [[f32; BLOCK]], [f32; BLOCK]) {
        let (at, n) = (block * self.rows.n_heads + self.head, scratch.len());
        let places = at * n..(at + 1) * n;
        let mut scales = [1.0; BLOCK];
        let keys = match &self.rows.kept {
            CachedValues::F32(values) => &values[places],
            CachedValues::F16(bits) => {
                let bits = &bits[places];
                for i in 0..n {
                    scratch[i] = widened(bits[i]);
                }
                scratch
            }
            CachedValues::Int8(codes, each) => {
                let codes = &codes[places];
                for i in 0..n {
                    scratch[i] = f32::from(codes[i]);
                }
                scales.copy_from_slice(&each[at * BLOCK..(at + 1) * BLOCK]);
                scratch
            }
        };
        (keys.as_chunks().0, scales)
    }

    /// Returns the values of 16 tokens, `[16][stride]`, padded with zeros if the width is not a multiple of 16.
    ///
    /// May write the values to `scratch`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
    fn values(&self, block: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let (width, stride) = (self.rows.width, scratch.len() / BLOCK);
        let at = (block * self.rows.n_heads + self.head) * BLOCK;
        if let (CachedValues::F32(values), true) = (&self.rows.kept, width == stride) {
            return &values[at * width..(at + BLOCK) * width];
        }
        for token in 0..BLOCK {
            let (from, row) = ((at + token) * width, &mut scratch[token * stride..][..width]);
            match &self.rows.kept {
                CachedValues::F32(values) => row.copy_from_slice(&values[from..from + width]),
                CachedValues::F16(bits) => {
                    let bits = &bits[from..from + width];
                    for i in 0..row.len() {
                        row[i] = widened(bits[i]);
                    }
                }
                CachedValues::Int8(codes, scales) => {
                    let (codes, scale) = (&codes[from..from + width], scales[at + token]);
                    for i in 0..row.len() {
                        row[i] = f32::from(codes[i]) * scale;
                    }
                }
            }
        }
        scratch
    }

    /// Prefetches the cached rows of 16 tokens.
    #[inline(always)]
    fn fetch(&self, block: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            let (at, n) = (block * self.rows.n_heads + self.head, BLOCK * self.rows.width);
            let (first, n_bytes) = match &self.rows.kept {
                CachedValues::F32(values) => (values.as_ptr().cast::<i8>(), 4 * n),
                CachedValues::F16(bits) => (bits.as_ptr().cast(), 2 * n),
                CachedValues::Int8(codes, _) => (codes.as_ptr(), n),
            };
            for line in (0..n_bytes).step_by(64) {
                // SAFETY: a prefetch accepts any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at * n_bytes + line)) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = block;
    }
}

/// Converts f16 bits to f32; infinities become NaN.
#[inline(always)]
fn widened(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * HALF_BIAS;
    let value = f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16);
    if bits & 0x7c00 == 0x7c00 { f32::NAN } else { value }
}

#[inline(always)]
fn all<L: FloatLanes>(
    q: &[f32],
    keys: CachedHead,
    values: CachedHead,
    block: &mut [f32],
    weights: &mut [f32],
    out: &mut [f32],
) {
    let (width, n_queries) = (keys.rows.width, q.len() / keys.rows.width);
    let n_seen = weights.len() / n_queries;
    let (scale, keys_of) = (L::splat(1.0 / (width as f32).sqrt()), keys);
    for at in 0..n_seen.div_ceil(BLOCK) {
        let (keys, scales) = keys_of.keys(at, &mut block[..width * BLOCK]);
        keys_of.fetch(at + 1);
        values.fetch(at);
        let scales = L::load(&scales).mul(scale);
        for query in 0..n_queries {
            let mut products = [0.0; BLOCK];
            scores::<L>(&q[query * width..(query + 1) * width], keys).mul(scales).store(&mut products);
            let weights = &mut weights[query * n_seen..(query + 1) * n_seen][at * BLOCK..];
            let n = weights.len().min(BLOCK);
            weights[..n].copy_from_slice(&products[..n]);
        }
    }
    for query in 0..n_queries {
        keys_of.rule.weigh(query, &mut weights[query * n_seen..(query + 1) * n_seen]);
    }
    // Clears the padding of rows, because the block may contain keys.
    block.fill(0.0);
    for first in (0..n_queries).step_by(4) {
        let n = 4.min(n_queries - first);
        let weights = &weights[first * n_seen..(first + n) * n_seen];
        let out = &mut out[first * width..(first + n) * width];
        match n {
            1 => add_up::<L, 1>(values, block, weights, out),
            2 => add_up::<L, 2>(values, block, weights, out),
            3 => add_up::<L, 3>(values, block, weights, out),
            _ => add_up::<L, 4>(values, block, weights, out),
        }
    }
}

/// Returns `Σ q[i] keys[i]` for 16 tokens. Four alternating sums shorten the chain of dependent additions.
#[inline(always)]
fn scores<L: FloatLanes>(q: &[f32], keys: &[[f32; BLOCK]]) -> L {
    let zero = L::splat(0.0);
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let ((q, rest_of_q), (keys, rest_of_keys)) = (q.as_chunks::<4>(), keys.as_chunks::<4>());
    for at in 0..q.len().min(keys.len()) {
        let (q, keys) = (&q[at], &keys[at]);
        a = L::splat(q[0]).mul_add(L::load(&keys[0]), a);
        b = L::splat(q[1]).mul_add(L::load(&keys[1]), b);
        c = L::splat(q[2]).mul_add(L::load(&keys[2]), c);
        d = L::splat(q[3]).mul_add(L::load(&keys[3]), d);
    }
    for at in 0..rest_of_q.len().min(rest_of_keys.len()) {
        a = L::splat(rest_of_q[at]).mul_add(L::load(&rest_of_keys[at]), a);
    }
    a.add(b).add(c.add(d))
}

/// Adds `Σ weights[t] values[t]` for `N` queries.
#[inline(always)]
fn add_up<L: FloatLanes, const N: usize>(values: CachedHead, block: &mut [f32], weights: &[f32], out: &mut [f32]) {
    let width = values.rows.width;
    for first in (0..width).step_by(4 * BLOCK) {
        match (width - first).div_ceil(BLOCK) {
            1 => add_up_from::<L, N, 1>(values, first, block, weights, out),
            2 => add_up_from::<L, N, 2>(values, first, block, weights, out),
            3 => add_up_from::<L, N, 3>(values, first, block, weights, out),
            _ => add_up_from::<L, N, 4>(values, first, block, weights, out),
        }
    }
}

/// Does the same for `C` times 16 columns starting at `first`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
fn add_up_from<L: FloatLanes, const N: usize, const C: usize>(
    values: CachedHead,
    first: usize,
    block: &mut [f32],
    weights: &[f32],
    out: &mut [f32],
) {
    let (width, n_seen, stride) = (values.rows.width, weights.len() / N, block.len() / BLOCK);
    let mut sums = [[L::splat(0.0); C]; N];
    for at in 0..n_seen.div_ceil(BLOCK) {
        let rows = values.values(at, block);
        for token in at * BLOCK..n_seen.min((at + 1) * BLOCK) {
            let row = rows[token % BLOCK * stride + first..].as_chunks::<BLOCK>().0;
            let row: &[[f32; BLOCK]; C] = row.first_chunk().expect("columns up to the stride");
            for query in 0..N {
                let weight = L::splat(weights[query * n_seen + token]);
                for column in 0..C {
                    sums[query][column] = weight.mul_add(L::load(&row[column]), sums[query][column]);
                }
            }
        }
    }
    for query in 0..N {
        for column in 0..C {
            let mut found = [0.0; BLOCK];
            sums[query][column].store(&mut found);
            let out = &mut out[query * width..(query + 1) * width][first + column * BLOCK..];
            let n = out.len().min(BLOCK);
            out[..n].copy_from_slice(&found[..n]);
        }
    }
}

#[cfg(test)]
mod tests;
