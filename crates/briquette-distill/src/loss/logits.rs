//! Divergences from the teacher's softened logits.

use super::wide;
use burn::tensor::Tensor;
use burn::tensor::activation::log_softmax;

/// Returns `T² · mean over rows of Σ p (ln p - ln q)`, where `p` and `q` are the softmax of `teacher / T` and
/// `student / T`.
///
/// Both are `[n, classes]`; in nats. The factor T² keeps the magnitude of gradients as T changes. The result is
/// 0 if both rows are equal up to a constant. Source: Hinton et al., "Distilling the Knowledge in a Neural
/// Network", 2015, section 2.
///
/// # Panics
/// If the shapes disagree or `temperature` is not above 0.
pub fn kl(student: Tensor<2>, teacher: Tensor<2>, temperature: f32) -> Tensor<1> {
    let [student, teacher] = softened(student, teacher, temperature);
    divergence(teacher, student).mean() * (temperature * temperature)
}

/// Returns `T² · mean over rows of (KL(p, m) + KL(q, m)) / 2` with `m = (p + q) / 2`, p and q as in [`kl`].
///
/// It is symmetric and at most `T² ln 2`, which bounds the loss of a confident but wrong teacher. Source: Lin,
/// "Divergence Measures Based on the Shannon Entropy", 1991, eq. 4.1.
///
/// # Panics
/// See [`kl`].
pub fn jensen_shannon(student: Tensor<2>, teacher: Tensor<2>, temperature: f32) -> Tensor<1> {
    let [student, teacher] = softened(student, teacher, temperature);
    // These are log probabilities, at most 0, so `exp` cannot overflow. If both probabilities round to 0, the
    // clamp keeps the logarithm finite.
    let mean = ((student.clone().exp() + teacher.clone().exp()) / 2.0).clamp_min(f32::MIN_POSITIVE).log();
    let both = divergence(teacher, mean.clone()) + divergence(student, mean);
    both.mean() * (temperature * temperature / 2.0)
}

/// Returns the log softmax of both at a temperature.
fn softened(student: Tensor<2>, teacher: Tensor<2>, temperature: f32) -> [Tensor<2>; 2] {
    assert!(temperature > 0.0, "temperature is above 0");
    assert_eq!(student.dims(), teacher.dims(), "logits have the same shape");
    [student, teacher].map(|scores| log_softmax(wide(scores) / temperature, 1))
}

/// Returns `Σ p (ln p - ln q)` of each row, from the logarithms.
fn divergence(ln_p: Tensor<2>, ln_q: Tensor<2>) -> Tensor<1> {
    (ln_p.clone().exp() * (ln_p - ln_q)).sum_dim(1).squeeze_dim(1)
}
