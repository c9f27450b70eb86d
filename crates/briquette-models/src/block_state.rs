//! The values between two blocks of a network.

use crate::graph_net::AnyTensor;
use briquette_core::{Error, Result};
use burn::tensor::{Device, Gradients, Tensor, TensorData};

/// The values that cross the border between two blocks, in the order of their network.
///
/// Most transformers have one, the hidden states `[batch, length, width]`. Others add a bias of attention scores, and
/// image networks have images of any extents.
#[derive(Debug, Clone)]
pub struct BlockState(pub Vec<AnyTensor>);

/// A value of a [`BlockState`] on the host: its extents and elements.
pub type HostValue = (Vec<usize>, Vec<f32>);

impl From<Tensor<3>> for BlockState {
    fn from(hidden: Tensor<3>) -> Self {
        Self(vec![hidden.into()])
    }
}

impl BlockState {
    /// Returns the hidden states `[batch, length, width]`.
    ///
    /// # Panics
    /// If the state has another number of values, or a value of another rank.
    #[track_caller]
    pub fn hidden(self) -> Tensor<3> {
        let n_values = self.0.len();
        match <[AnyTensor; 1]>::try_from(self.0) {
            Ok([hidden]) => hidden.three(),
            Err(_) => panic!("found {n_values} values, expected hidden states only"),
        }
    }

    /// Copies the values to the host, in f32.
    ///
    /// # Errors
    /// Io: the device fails.
    pub fn to_host(&self) -> Result<Vec<HostValue>> {
        self.0.iter().map(|value| Ok((value.dims(), value.to_f32("hidden states")?))).collect()
    }

    /// Copies values from the host to a device, in f32.
    ///
    /// # Panics
    /// If a value has another number of elements than its extents, or no rank from 1 to 6.
    pub fn from_host(values: Vec<HostValue>, device: &Device) -> Self {
        Self(values.into_iter().map(|(dims, values)| AnyTensor::from_f32(values, &dims, device)).collect())
    }

    /// Returns the state as leaves of an autodiff graph.
    #[must_use]
    pub fn leaves(self) -> Self {
        Self(self.0.into_iter().map(AnyTensor::leaf).collect())
    }

    /// Returns the gradients of leaves; zeros where a value has none.
    ///
    /// # Panics
    /// If the state has no leaves.
    #[must_use]
    pub fn gradients(&self, gradients: &Gradients) -> Self {
        Self(self.0.iter().map(|value| value.gradient(gradients)).collect())
    }

    /// Returns the sum of the products with the gradients of some loss, whose gradients are those of the loss.
    ///
    /// `gradients` is not differentiated.
    ///
    /// # Errors
    /// Bug: the states have other numbers of values.
    pub fn dot(self, gradients: Self) -> Result<Tensor<1>> {
        if self.0.len() != gradients.0.len() {
            return Err(Error::bug("states of different blocks"));
        }
        let products = self.0.into_iter().zip(gradients.0).map(|(value, gradient)| value.dot(gradient));
        products.reduce(|a, b| a + b).ok_or_else(|| Error::bug("a block without outputs"))
    }

    /// Returns some positions of hidden states, in order.
    ///
    /// # Panics
    /// See [`hidden`](Self::hidden); if there are fewer positions.
    #[must_use]
    pub fn positions(self, positions: std::ops::Range<usize>) -> Self {
        self.hidden().narrow(1, positions.start, positions.len()).into()
    }
}

impl AnyTensor {
    /// Copies a value from the host.
    fn from_f32(values: Vec<f32>, dims: &[usize], device: &Device) -> Self {
        let data = TensorData::new(values, [dims.iter().product::<usize>()]);
        Self::from(Tensor::<1>::from_data(data, device).cast(burn::tensor::FloatDType::F32)).reshaped(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_a_later_loss_pass_through_a_block() {
        let device = Device::flex();
        let x = BlockState::from_host(vec![(vec![1, 2, 1], vec![3.0, 4.0]), (vec![2], vec![5.0, 6.0])], &device);
        assert_eq!(x.to_host().unwrap(), [(vec![1, 2, 1], vec![3.0, 4.0]), (vec![2], vec![5.0, 6.0])]);
        let device = device.autodiff();
        let on_device = BlockState::from_host(x.to_host().unwrap(), &device).leaves();
        let [hidden, bias] = <[AnyTensor; 2]>::try_from(on_device.0.clone()).unwrap();
        // The block squares the hidden states and passes the bias on.
        let after = BlockState(vec![hidden.three().powi_scalar(2).into(), bias]);
        let later =
            BlockState::from_host(vec![(vec![1, 2, 1], vec![1.0, 10.0]), (vec![2], vec![7.0, 8.0])], &Device::flex());
        let gradients = after.dot(later).unwrap().backward();
        let found = on_device.gradients(&gradients).to_host().unwrap();
        assert_eq!(found, [(vec![1, 2, 1], vec![6.0, 80.0]), (vec![2], vec![7.0, 8.0])]);
    }
}
