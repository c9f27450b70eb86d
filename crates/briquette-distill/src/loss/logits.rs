//! Divergences from the teacher's softened logits, and the distance of unsoftened ones.

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

/// Returns the generalized Jensen–Shannon divergence, `T² · mean over rows of β KL(p, m) + (1 - β) KL(q, m)`.
///
/// Here `m = β p + (1 - β) q`, with p of the teacher and q of the student as in [`kl`]. If β is 0.5, the divergence
/// is symmetric and at most `T² ln 2`, which bounds the loss of a confident but wrong teacher. By convention β = 0
/// is `KL(p, q)` and β = 1 is the reverse divergence `KL(q, p)`. Sources: Lin, "Divergence Measures Based on the
/// Shannon Entropy", 1991, eq. 4.1; Agarwal et al., "On-Policy Distillation of Language Models", 2024, eq. 1.
///
/// # Panics
/// - `beta` is not from 0 to 1.
/// - See [`kl`].
pub fn jensen_shannon(student: Tensor<2>, teacher: Tensor<2>, temperature: f32, beta: f32) -> Tensor<1> {
    assert!((0.0..=1.0).contains(&beta), "beta is from 0 to 1");
    let [student, teacher] = softened(student, teacher, temperature);
    let rows = if beta == 0.0 {
        divergence(teacher, student)
    } else if beta == 1.0 {
        divergence(student, teacher)
    } else {
        // These are log probabilities, at most 0, so `exp` cannot overflow. If both probabilities round to 0, the
        // clamp keeps the logarithm finite.
        let mixture = student.clone().exp() * (1.0 - beta) + teacher.clone().exp() * beta;
        let mixture = mixture.clamp_min(f32::MIN_POSITIVE).log();
        divergence(teacher, mixture.clone()) * beta + divergence(student, mixture) * (1.0 - beta)
    };
    rows.mean() * (temperature * temperature)
}

/// Returns the mean of `(student - teacher)²` over all rows and columns.
///
/// Both are `[n, classes]`. One column, as of a model that ranks texts, has no softmax to compare. Source: Ba and Caruana,
/// "Do Deep Nets Really Need to be Deep?", 2014, eq. 1, without its factor 1/2.
///
/// # Panics
/// If the shapes disagree.
pub fn mse(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    assert_eq!(student.dims(), teacher.dims(), "logits have the same shape");
    (wide(student) - wide(teacher)).square().mean()
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn the_squared_error_is_a_mean_over_all_logits() {
        let device = Device::default();
        let of = |rows: [[f32; 2]; 2]| Tensor::<2>::from_data(rows, &device);
        let found = mse(of([[1.0, 3.0], [0.0, -2.0]]), of([[0.0, 5.0], [0.0, -2.0]]));
        assert_eq!(found.into_scalar::<f32>(), 1.25);
        let one = |value: f32| Tensor::<2>::from_data([[value]], &device);
        assert_eq!(mse(one(0.5), one(-1.5)).into_scalar::<f32>(), 4.0);
    }
}
