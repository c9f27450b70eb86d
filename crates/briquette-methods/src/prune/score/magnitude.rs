//! L1: the magnitude of the weight itself.

/// `score[o, i] = |w[o, i]|`.
///
/// The weights are returned as they are: a selection compares magnitudes, so taking them would only cost a pass.
/// Source: Han et al., "Learning both WeightSlice and Connections for Efficient Neural Networks", 2015;
/// `torch.nn.utils.prune.l1_unstructured`.
pub fn magnitude(weights: &[f32]) -> &[f32] {
    weights
}
