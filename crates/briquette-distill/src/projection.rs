//! Learned bridges between widths.

use briquette_nn::layers::{Linear, LinearConfig};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// For each layer of a student, a linear map from its width to the teacher's, trained along and then thrown away.
///
/// `y = x · W`, without a bias. Source: Jiao et al., "TinyBERT", 2020, eq. 8.
#[derive(Module, Debug)]
pub struct Projections {
    layers: Vec<Linear>,
}

impl Projections {
    /// One for each of `n_layers`; none where widths agree.
    pub fn new(n_layers: usize, [from, to]: [usize; 2], device: &Device) -> Self {
        let n_layers = if from == to { 0 } else { n_layers };
        let layer = |_| LinearConfig::new(from, to).with_bias(false).init(device);
        Self { layers: (0..n_layers).map(layer).collect() }
    }

    /// States of one layer at the teacher's width; unchanged where there is no map for it.
    pub fn apply(&self, layer: usize, states: Tensor<3>) -> Tensor<3> {
        match self.layers.get(layer) {
            Some(linear) => linear.forward(states),
            None => states,
        }
    }
}
