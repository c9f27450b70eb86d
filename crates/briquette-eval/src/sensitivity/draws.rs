//! Random losses whose gradients have the curvature of the real loss as their covariance.

use briquette_core::Result;
use briquette_core::random::{mixed, uniform};
use briquette_nn::module::read_f32;
use burn::tensor::{FloatDType, Int, Tensor, TensorData, activation::log_softmax};

/// Returns `Σ −ln p(y)`, with a class `y` of each row sampled from the row's own probabilities.
///
/// Its gradients in the logits `[rows, classes]` have the covariance `diag(p) − ppᵀ`, the curvature of the
/// Kullback-Leibler divergence.
///
/// # Errors
/// Io: the device cannot be read.
pub(super) fn of_scores(scores: Tensor<2>, seed: u64) -> Result<Tensor<1>> {
    let [n, width] = scores.dims();
    let logs = log_softmax(scores.cast(FloatDType::F32), 1);
    let values = read_f32(logs.clone().without_autodiff(), "scores")?;
    let drawn = values.chunks(width.max(1)).enumerate().map(|(row, logs)| drawn(logs, uniform(seed, row as u64)));
    let drawn = TensorData::new(drawn.collect::<Vec<i32>>(), [n, 1]);
    let drawn = Tensor::<2, Int>::from_data(drawn, &logs.device());
    Ok(logs.gather(1, drawn).sum().neg())
}

/// Returns the class at which the cumulative probability exceeds `at`.
fn drawn(logs: &[f32], at: f32) -> i32 {
    let (mut sum, at) = (0.0, f64::from(at));
    let passes = |log: &f32| {
        sum += f64::from(log.exp());
        sum > at
    };
    logs.iter().position(passes).unwrap_or(logs.len().saturating_sub(1)) as i32
}

/// Returns `Σ v·y/|y|` over embeddings `[n, width]`, with random signs `v`.
///
/// One minus the cosine of `y` and `y + δ` is `½·|Pδ|²/|y|²` to second order, and `Pδ/|y|` is the change of
/// `y/|y|`.
pub(super) fn of_embeddings(embeddings: Tensor<2>, seed: u64) -> Tensor<1> {
    let embeddings = embeddings.cast(FloatDType::F32);
    let lengths = embeddings.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
    of_values(embeddings / lengths, seed)
}

/// Returns `Σ v·y` over values `[n, width]`, with random signs `v`: its gradients have the curvature of half the squared error.
pub(super) fn of_values(values: Tensor<2>, seed: u64) -> Tensor<1> {
    let ([n, width], device) = (values.dims(), values.device());
    let sign = |place: usize| if mixed(seed, place as u64) >> 63 == 0 { 1.0_f32 } else { -1.0 };
    let signs = TensorData::new((0..n * width).map(sign).collect::<Vec<f32>>(), [n, width]);
    (values.cast(FloatDType::F32) * Tensor::from_data(signs, &device)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn classes_are_sampled_by_their_probabilities() {
        let logs = [0.1_f32, 0.6, 0.3].map(f32::ln);
        let mut counts = [0_i32; 3];
        (0..10_000).for_each(|place| counts[drawn(&logs, uniform(3, place)) as usize] += 1);
        for (count, expected) in counts.into_iter().zip([1000, 6000, 3000]) {
            assert!((count - expected).abs() < 200, "{counts:?}");
        }
        assert_eq!(drawn(&logs, 0.999_999), 2);
    }

    #[test]
    fn gradients_of_sampled_classes_have_the_curvature_of_kl() {
        let device = Device::flex().autodiff();
        let (scores, n) = ([0.5_f32, -1.0, 2.0], 4000);
        let rows = Tensor::<1>::from_floats(scores, &device).reshape([1, 3]).repeat_dim(0, n).require_grad();
        let grads = of_scores(rows.clone(), 1).unwrap().backward();
        let found = read_f32(rows.grad(&grads).unwrap(), "gradients").unwrap();
        let sum: f32 = scores.iter().map(|score| score.exp()).sum();
        for (class, score) in scores.iter().enumerate() {
            let p = score.exp() / sum;
            let square = found.chunks(3).map(|row| row[class] * row[class]).sum::<f32>() / n as f32;
            assert!((square - p * (1.0 - p)).abs() < 0.02, "{square} of {}", p * (1.0 - p));
        }
    }

    #[test]
    fn gradients_of_random_signs_have_the_curvature_of_the_cosine() {
        let device = Device::flex().autodiff();
        let (values, n) = ([3.0_f32, 0.0, 4.0], 4000);
        let rows = Tensor::<1>::from_floats(values, &device).reshape([1, 3]).repeat_dim(0, n).require_grad();
        let grads = of_embeddings(rows.clone(), 1).backward();
        let found = read_f32(rows.grad(&grads).unwrap(), "gradients").unwrap();
        // P/|y|² of y = (3, 0, 4): a change along y has no effect.
        for (at, expected) in [(0, 0.64 / 25.0), (1, 1.0 / 25.0), (2, 0.36 / 25.0)] {
            let square = found.chunks(3).map(|row| row[at] * row[at]).sum::<f32>() / n as f32;
            assert!((square - expected).abs() < 0.003, "{square} of {expected}");
        }
    }
}
