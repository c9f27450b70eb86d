//! Compares two decoders on one text: agreement of the most likely token, and divergence.

use crate::likelihood::each_scores;
use crate::outputs::{ItemProgress, to_host};
use crate::state_file::StateFile;
use crate::{lanes, metrics};
use briquette_core::Result;
use briquette_cpu::float::log_sum_exp;
use briquette_models::GraphNet;
use burn::tensor::{Device, FloatDType, Tensor};

/// The agreement and divergence of a decoder and its original.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Nearness {
    /// The share of tokens after which both have the same most likely token.
    pub agreement: f64,
    /// The mean of `Σ p ln(p / q)` over tokens, in nats. `p` is the original's distribution, `q` the model's.
    pub kl: f64,
}

/// A decoder and its head inputs.
#[derive(Clone, Copy)]
pub(crate) struct HeadAndStates<'a> {
    /// The decoder; only its head runs.
    pub network: &'a GraphNet,
    /// The inputs of its head.
    pub states: &'a StateFile,
}

/// Returns `Σ p ln(p / q)` of logits, where `p` and `q` are their softmaxes.
fn divergence(original: &[f32], model: &[f32]) -> f64 {
    let (of_original, of_model) = (log_sum_exp(original), log_sum_exp(model));
    let shift = of_original as f32;
    let each = original.iter().zip(model).map(|(a, b)| f64::from((a - shift).exp()) * f64::from(a - b));
    (each.sum::<f64>() + of_model - of_original).max(0.0)
}

/// Compares the logits of two decoders after each token of the windows that both have stored.
///
/// Both compute in the same type. `None` if their vocabularies or windows differ.
///
/// # Errors
/// - Io: states cannot be read, or the logits cannot be read from the device.
/// - The first error of `progress`.
pub(crate) fn nearness(
    original: HeadAndStates,
    model: HeadAndStates,
    (device, compute): (&Device, FloatDType),
    progress: ItemProgress,
) -> Result<Option<Nearness>> {
    let vocab_sizes = [original, model].map(|of| of.network.as_decoder().vocab_size());
    let Some(n_windows) = original.states.n_shared(model.states).filter(|_| vocab_sizes[0] == vocab_sizes[1]) else {
        return Ok(None);
    };
    let of_window = |window: usize| -> Result<[f64; 3]> {
        let [of_original, of_model] = [original, model].map(|of| of.states.get(window, device));
        let (other, mut sums) = (of_model?.cast(compute), [0.0; 3]);
        each_scores(original.network.as_decoder(), of_original?.cast(compute), |start, scores| {
            let [_, n, width] = scores.dims();
            let found = model.network.as_decoder().scores(other.clone().narrow(1, start, n));
            let rows = |scores: Tensor<3>| to_host(scores.cast(FloatDType::F32).reshape([n, width]));
            let (p, q) = (rows(scores)?.values, rows(found)?.values);
            for (p, q) in metrics::rows(&p, width).zip(metrics::rows(&q, width)) {
                let is_same = metrics::argmax(p) == metrics::argmax(q);
                sums = [sums[0] + f64::from(u8::from(is_same)), sums[1] + divergence(p, q), sums[2] + 1.0];
            }
            Ok(())
        })?;
        Ok(sums)
    };
    let mut all = [0.0; 3];
    for windows in (0..n_windows).collect::<Vec<_>>().chunks(lanes::n_lanes(device)) {
        for sums in lanes::run(windows.to_vec(), of_window)? {
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        progress(windows[windows.len() - 1] + 1, n_windows)?;
    }
    Ok(Some(Nearness { agreement: all[0] / all[2], kl: all[1] / all[2] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_equals_the_kl_metric() {
        let (a, b): (Vec<f32>, Vec<f32>) =
            (0..300).map(|i| ((i * 37 % 41) as f32 * 0.2, (i * 53 % 29) as f32 * 0.3)).unzip();
        assert!((divergence(&a, &b) - metrics::kl(&a, &b, 300)).abs() < 1e-5);
        assert_eq!(divergence(&a, &a), 0.0);
    }
}
