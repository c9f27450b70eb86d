//! Networks that consist of layers.

use crate::{Outputs, Wanted};
use burn::tensor::Tensor;

/// A network of layers, each of which takes the output of the previous one, `[batch, length, width]`.
pub trait Layered {
    /// The input of the network.
    type Input;

    /// Returns the number of layers.
    fn n_layers(&self) -> usize;

    /// Returns the input of the first layer.
    fn enter(&self, input: &Self::Input) -> Tensor<3>;

    /// Returns the output of layer `index` for a state.
    fn layer(&self, index: usize, state: Tensor<3>, input: &Self::Input) -> Tensor<3>;

    /// Returns the network's outputs from the states after each layer. Attention is not requested.
    fn leave(&self, states: Vec<Tensor<3>>, input: &Self::Input, wanted: Wanted) -> Outputs;
}
