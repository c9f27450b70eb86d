//! Refuses a network in training with weights that are not finite.

use briquette_core::{Error, Result};
use briquette_nn::module::read_f32;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};

/// Checks every float parameter of a network after this many training steps.
///
/// Losses and gradients are checked at each step, but the update after them may still overflow a weight.
/// [`Distiller::run`](crate::Distiller::run) and [`Several::run`](crate::Several::run) call this before each
/// checkpoint and at the end of each epoch. Call it in a training loop of your own before you store the network.
///
/// # Errors
/// - Refused: a weight is NaN or infinite. The error has its path and the step.
/// - Io: a weight cannot be read from its device.
pub fn check_finite(network: &impl Module, step: usize) -> Result<()> {
    let mut visitor = FiniteVisitor { path: Vec::new(), step, found: Ok(()) };
    network.visit(&mut visitor);
    visitor.found
}

struct FiniteVisitor {
    path: Vec<String>,
    step: usize,
    found: Result<()>,
}

impl ModuleVisitor for FiniteVisitor {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.is_err() {
            return;
        }
        let path = self.path.join(".");
        self.found = read_f32(param.val().without_autodiff().cast(FloatDType::F32), &path).and_then(|values| {
            match values.iter().find(|value| !value.is_finite()) {
                Some(value) => {
                    let step = self.step;
                    let message = format!("found {value} after training step {step}; lower the learning rate");
                    Err(Error::refused(message).at(&path))
                }
                None => Ok(()),
            }
        });
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;
    use burn::tensor::Device;

    #[test]
    fn a_weight_that_is_not_finite_is_refused_by_its_path() {
        let device = Device::flex();
        let mut network = vec![LinearConfig::new(2, 3).init(&device), LinearConfig::new(3, 1).init(&device)];
        check_finite(&network, 0).unwrap();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            network[1].weight = Param::from_tensor(Tensor::full([3, 1], value, &device));
            let error = check_finite(&network, 12).unwrap_err();
            let expected = format!("1.weight: found {value} after training step 12; lower the learning rate");
            assert_eq!((error.exit_code(), error.message), (6, expected));
        }
    }
}
