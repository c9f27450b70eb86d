//! A network that runs as it does when nothing is trained, and has gradients all the same.

use burn::module::{Flag, Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};

/// The network without what only trains: no dropout, and batch norms by the statistics that they have.
pub(crate) fn still<M: Module>(network: M) -> M {
    network.map(&mut Still)
}

struct Still;

impl ModuleMapper for Still {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.with_value(false)
    }

    // What was never read is not drawn now.
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    #[test]
    fn nothing_is_dropped_and_gradients_are_there() {
        let device = Device::flex().autodiff();
        let (linear, dropout): (Linear, Dropout) =
            still((LinearConfig::new(64, 8).init(&device), DropoutConfig::new(0.9).init()));
        let x = Tensor::<2>::ones([4, 64], &device);
        assert_eq!(dropout.forward(x.clone()).into_data(), x.clone().into_data());
        let gradients = linear.forward(dropout.forward(x)).sum().backward();
        assert!(linear.weight.val().grad(&gradients).is_some());
    }
}
