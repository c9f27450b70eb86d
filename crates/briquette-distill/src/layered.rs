//! Networks that are made of layers.

use crate::{Outputs, Wanted};
use burn::tensor::Tensor;

/// A network of layers, each of which takes the state that the one before left, `[batch, length, width]`.
pub trait Layered {
    /// What it takes in.
    type Input;

    /// How many there are.
    fn n_layers(&self) -> usize;

    /// What the first one takes.
    fn enter(&self, input: &Self::Input) -> Tensor<3>;

    /// What layer `index` makes of a state.
    fn layer(&self, index: usize, state: Tensor<3>, input: &Self::Input) -> Tensor<3>;

    /// What comes out, of the states after each layer. Attention is not asked for.
    fn leave(&self, states: Vec<Tensor<3>>, input: &Self::Input, wanted: Wanted) -> Outputs;
}
