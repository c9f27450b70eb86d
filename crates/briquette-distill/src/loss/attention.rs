//! Losses on attention.

use super::{mean_of_tokens, wide};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Tensor};

/// The score of a padding key: low enough for its softmax to be 0 in f32.
const ABSENT: f32 = -1e9;

/// Returns the KL divergence of attention probabilities.
///
/// This is the `mean over batch, heads and queries of Σ a (ln a - ln b)`. `a` are the teacher's and `b` the
/// student's attention probabilities, `[batch, heads, length, length]`, with rows that sum to 1. Queries where
/// `padding` `[batch, length]` is true do not count, and their columns are 0. Source: Wang et al., "MiniLM",
/// 2020, eq. 5.
///
/// # Panics
/// If the shapes disagree.
pub fn maps(student: Tensor<4>, teacher: Tensor<4>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "attention has the same shape");
    // The clamp keeps ln 0 finite. In the sum it is multiplied by a weight of 0, so that 0 ln 0 counts as 0.
    let ln = |map: Tensor<4>| wide(map).clamp_min(f32::MIN_POSITIVE).log();
    mean_of_queries(wide(teacher.clone()), ln(teacher), ln(student), padding)
}

/// Returns the divergence of [`maps`] for the relations between values, `softmax(v vᵀ / √d)`.
///
/// `v` `[batch, length, width]` is split into `n_heads` parts of width `d`. Student and teacher may have
/// different widths and numbers of heads; `n_heads` must divide both widths. Source: Wang et al., "MiniLMv2",
/// 2021, eq. 5.
///
/// # Panics
/// If batches or lengths disagree, or `n_heads` does not divide a width.
pub fn values(student: Tensor<3>, teacher: Tensor<3>, n_heads: usize, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    assert_eq!(student.dims()[..2], teacher.dims()[..2], "values have the same batch and length");
    let [student, teacher] = [student, teacher].map(|values| relations(values, n_heads, padding.clone()));
    mean_of_queries(teacher.clone().exp(), teacher, student, padding)
}

/// Returns `ln softmax(v vᵀ / √d)`, `[batch, heads, length, length]`, over the keys that are not padding.
fn relations(values: Tensor<3>, n_heads: usize, padding: Option<Tensor<2, Bool>>) -> Tensor<4> {
    let [batch, length, width] = values.dims();
    assert!(width.is_multiple_of(n_heads.max(1)), "{n_heads} heads do not divide a width of {width}");
    let each = width / n_heads.max(1);
    let values = wide(values).reshape([batch, length, n_heads, each]).swap_dims(1, 2);
    let scores = values.clone().matmul(values.transpose()) / (each as f32).sqrt();
    let scores = match padding {
        Some(padding) => {
            scores.mask_fill(padding.reshape([batch, 1, 1, length]).expand([batch, n_heads, length, length]), ABSENT)
        }
        None => scores,
    };
    log_softmax(scores, 3)
}

/// Returns the mean of `Σ p (ln p - ln q)` over the queries that are not padding.
fn mean_of_queries(p: Tensor<4>, ln_p: Tensor<4>, ln_q: Tensor<4>, padding: Option<Tensor<2, Bool>>) -> Tensor<1> {
    let each: Tensor<3> = (p * (ln_p - ln_q)).sum_dim(3).squeeze_dim(3);
    mean_of_tokens(each.mean_dim(1).squeeze_dim(1), padding)
}
