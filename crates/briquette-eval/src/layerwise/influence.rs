//! How much a block changes the vectors that pass through it.

use briquette_core::Result;
use briquette_models::BlockState;
use briquette_models::graph_net::AnyTensor;

/// Sums over the vectors before and after a block.
#[derive(Debug, Default)]
pub(super) struct BlockInfluence {
    sum: f64,
    n_vectors: u64,
    /// Whether a batch had other shapes before and after the block, or no vectors.
    is_unknown: bool,
}

impl BlockInfluence {
    /// Adds a batch of hidden states `[batch, length, width]`.
    pub(super) fn add(&mut self, before: &BlockState, after: &BlockState) -> Result<()> {
        let of_last = |state: &BlockState| state.0.last().map(AnyTensor::dims);
        let width = match (of_last(before), of_last(after)) {
            (Some(dims), Some(after)) if dims == after && dims.len() == 3 => dims[2],
            _ => 0,
        };
        let (Some(before), Some(after), true) = (before.0.last(), after.0.last(), width > 0) else {
            self.is_unknown = true;
            return Ok(());
        };
        let (before, after) = (before.to_f32("hidden states")?, after.to_f32("hidden states")?);
        self.sum +=
            before.chunks_exact(width).zip(after.chunks_exact(width)).map(|(a, b)| 1.0 - cosine(a, b)).sum::<f64>();
        self.n_vectors += (before.len() / width) as u64;
        Ok(())
    }

    /// Returns the mean of `1 - cos`; `None` if it is not known.
    pub(super) fn mean(&self) -> Option<f64> {
        (!self.is_unknown && self.n_vectors > 0).then(|| self.sum / self.n_vectors as f64)
    }
}

/// Returns the cosine of the angle between two vectors; 1 if both are 0, and 0 if one is.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let (of_a, of_b) = (dot(a, a), dot(b, b));
    match of_a * of_b > 0.0 {
        true => dot(a, b) / (of_a * of_b).sqrt(),
        false => f64::from(u8::from(of_a == of_b)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn state(values: &[f32], dims: &[usize]) -> BlockState {
        BlockState::from_host(vec![(dims.to_vec(), values.to_vec())], &Device::flex())
    }

    #[test]
    fn turned_vectors_have_influence_and_longer_ones_have_none() {
        let before = state(&[1.0, 0.0, 0.0, 2.0], &[1, 2, 2]);
        let mut found = BlockInfluence::default();
        assert_eq!(found.mean(), None);
        found.add(&before, &state(&[3.0, 0.0, 5.0, 0.0], &[1, 2, 2])).unwrap();
        assert_eq!(found.mean(), Some(0.5));
        found.add(&before, &before).unwrap();
        assert_eq!(found.mean(), Some(0.25));
        found.add(&before, &state(&[1.0; 8], &[1, 2, 4])).unwrap();
        assert_eq!(found.mean(), None, "other shapes");
    }
}
