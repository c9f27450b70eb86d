//! Networks that train without dropout.

use burn::module::{Flag, Module, ModuleMapper, Param};
use burn::tensor::{Bool, Int, Tensor};

/// How burn names the container of a dropout's fields.
const DROPOUT: &str = "Struct:Dropout";

/// The network with all of its dropout switched off, whether it trains or not.
pub fn without_dropout<M: Module>(network: M) -> M {
    network.map(&mut Off { containers: Vec::new() })
}

struct Off {
    containers: Vec<String>,
}

impl ModuleMapper for Off {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        self.containers.push(container_type.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.containers.pop();
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        match self.containers.last().is_some_and(|container| container == DROPOUT) {
            true => flag.with_value(false),
            false => flag,
        }
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
    use crate::layers::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
    use burn::tensor::Device;

    #[test]
    fn dropout_is_off_and_stays_off_and_batch_norms_are_as_they_were() {
        let device = Device::flex().autodiff();
        let network: (BatchNorm, Dropout) = (BatchNormConfig::new(4).init(&device), DropoutConfig::new(0.9).init());
        let (norm, dropout) = without_dropout(network);
        assert!(norm.training.is_enabled() && !dropout.training.is_enabled());
        let (norm, dropout) = (norm, dropout).valid().train();
        assert!(norm.training.is_enabled() && !dropout.training.is_enabled(), "after an evaluation too");
    }
}
