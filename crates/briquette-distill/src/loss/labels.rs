//! Cross entropy with labels, optionally smoothed.

use super::wide;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// Returns `-mean over rows of Σ q ln p` in nats, where `p` is the softmax of `scores` `[n, classes]`.
///
/// `q` is `1 - smoothing` for the label, plus `smoothing / classes` for every class. Source: Szegedy et al.,
/// "Rethinking the Inception Architecture", 2016, section 7; torch's `cross_entropy`.
///
/// # Panics
/// If the numbers of labels and rows differ, or `smoothing` is not from 0 to below 1. A label that is not a
/// class reads beyond its row: check labels when they are loaded.
pub fn cross_entropy(scores: Tensor<2>, labels: Tensor<1, Int>, smoothing: f32) -> Tensor<1> {
    assert!((0.0..1.0).contains(&smoothing), "smoothing is from 0 to below 1");
    assert_eq!(scores.dims()[0], labels.dims()[0], "one label per row");
    let ln_p = log_softmax(wide(scores), 1);
    let of_labels = ln_p.clone().gather(1, labels.unsqueeze_dim(1)).mean();
    match smoothing {
        0.0 => of_labels.neg(),
        _ => (of_labels * (1.0 - smoothing) + ln_p.mean() * smoothing).neg(),
    }
}
