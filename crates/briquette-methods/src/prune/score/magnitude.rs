//! L1: the magnitude of the weight.

/// Returns `score[o, i] = |w[o, i]|`.
///
/// The weights are returned unchanged: a selection compares magnitudes, so computing them here would only cost
/// a pass. Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015;
/// `torch.nn.utils.prune.l1_unstructured`.
pub fn magnitude(weights: &[f32]) -> &[f32] {
    weights
}
