//! Disables training-only behaviour of networks.

use burn::module::{Flag, Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};

/// burn's names of the containers with dropout fields, and with running statistics.
const DROPOUT: &str = "Struct:Dropout";
const BATCH_NORM: &str = "Struct:BatchNorm";

/// Disables all dropout of a network, in training too.
pub fn without_dropout<M: Module>(network: M) -> M {
    network.map(&mut Off { containers: Vec::new(), is_chosen: |container| container == DROPOUT })
}

/// Makes batch norms use their stored mean and variance in training too, and keep them. Their scales and offsets are trained.
pub fn with_stored_statistics<M: Module>(network: M) -> M {
    network.map(&mut Off { containers: Vec::new(), is_chosen: |container| container == BATCH_NORM })
}

/// Disables training-only behaviour but keeps gradients: no dropout, and batch norms with their running
/// statistics.
pub fn still<M: Module>(network: M) -> M {
    network.map(&mut Off { containers: Vec::new(), is_chosen: |_| true })
}

struct Off {
    containers: Vec<String>,
    /// Whether the flags of a container are disabled.
    is_chosen: fn(&str) -> bool,
}

impl ModuleMapper for Off {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        self.containers.push(container_type.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.containers.pop();
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        match (self.is_chosen)(self.containers.last().map_or("", String::as_str)) {
            true => flag.with_value(false),
            false => flag,
        }
    }

    // Uninitialized parameters stay uninitialized.
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
    use crate::layers::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    #[test]
    fn disabling_dropout_is_permanent_and_keeps_batch_norms() {
        let device = Device::flex().autodiff();
        let network: (BatchNorm, Dropout) = (BatchNormConfig::new(4).init(&device), DropoutConfig::new(0.9).init());
        let (norm, dropout) = without_dropout(network);
        assert!(norm.training.is_enabled() && !dropout.training.is_enabled());
        let (norm, dropout) = (norm, dropout).valid().train();
        assert!(norm.training.is_enabled() && !dropout.training.is_enabled(), "also after an evaluation");
        assert!(!still(norm).training.is_enabled());
    }

    #[test]
    fn stored_statistics_stay_and_scales_are_trained() {
        let device = Device::flex().autodiff();
        let network: (BatchNorm, Dropout) = (BatchNormConfig::new(2).init(&device), DropoutConfig::new(0.9).init());
        let (norm, dropout) = with_stored_statistics(network);
        assert!(dropout.training.is_enabled());
        let x = Tensor::<3>::full([1, 2, 4], 3.0, &device);
        let gradients = norm.forward(x.clone()).sum().backward();
        assert!(norm.gamma.val().grad(&gradients).is_some());
        let apart = (norm.forward(x.clone()) - x).abs().max().into_scalar::<f32>();
        assert!(apart < 1e-4, "a mean of 0 and a variance of 1: {apart}");
        let norm = norm.valid().train();
        assert!(!norm.training.is_enabled(), "also after an evaluation");
    }

    #[test]
    fn dropout_is_disabled_and_gradients_are_recorded() {
        let device = Device::flex().autodiff();
        let (linear, dropout): (Linear, Dropout) =
            still((LinearConfig::new(64, 8).init(&device), DropoutConfig::new(0.9).init()));
        let x = Tensor::<2>::ones([4, 64], &device);
        assert_eq!(dropout.forward(x.clone()).into_data(), x.clone().into_data());
        let gradients = linear.forward(dropout.forward(x)).sum().backward();
        assert!(linear.weight.val().grad(&gradients).is_some());
    }
}
