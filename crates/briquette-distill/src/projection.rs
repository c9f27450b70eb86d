//! Learned projections between hidden widths.

use briquette_nn::layers::{Linear, LinearConfig};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// A linear map per student layer from its width to the teacher's.
///
/// The maps are trained with the student and then discarded.
///
/// `y = x · W`, without a bias. Source: Jiao et al., "TinyBERT", 2020, eq. 8.
#[derive(Module, Debug)]
pub struct Projections {
    layers: Vec<Linear>,
}

impl Projections {
    /// Creates a map for each of `n_layers`; none if the widths are equal.
    pub fn new(n_layers: usize, [from, to]: [usize; 2], device: &Device) -> Self {
        let n_layers = if from == to { 0 } else { n_layers };
        let layer = |_| LinearConfig::new(from, to).with_bias(false).init(device);
        Self { layers: (0..n_layers).map(layer).collect() }
    }

    /// Projects the states of one layer to the teacher's width. Returns them unchanged if the layer has no map.
    pub fn apply(&self, layer: usize, states: Tensor<3>) -> Tensor<3> {
        match self.layers.get(layer) {
            Some(linear) => linear.forward(states),
            None => states,
        }
    }
}
