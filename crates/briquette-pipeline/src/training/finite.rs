//! Refuses a trained network with weights that are not finite.

use briquette_core::{Error, Result};
use briquette_nn::module::read_f32;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};

/// Checks every float parameter of a trained network.
///
/// Losses and gradients are checked at each step, but the last step may still overflow a weight.
///
/// # Errors
/// - Refused: a weight is NaN or infinite. The error has its path.
/// - Io: a weight cannot be read from its device.
pub(crate) fn check_finite(network: &impl Module) -> Result<()> {
    let mut visitor = FiniteVisitor { path: Vec::new(), found: Ok(()) };
    network.visit(&mut visitor);
    visitor.found
}

struct FiniteVisitor {
    path: Vec<String>,
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
                    let message = format!("found {value} after the last training step; lower the learning rate");
                    Err(Error::refused(message).at(&path))
                }
                None => Ok(()),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;
    use burn::tensor::Device;

    #[test]
    fn a_weight_that_is_not_finite_is_refused_by_its_path() {
        let device = Device::flex();
        let mut network = vec![LinearConfig::new(2, 3).init(&device), LinearConfig::new(3, 1).init(&device)];
        check_finite(&network).unwrap();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            network[1].weight = Param::from_tensor(Tensor::full([3, 1], value, &device));
            let error = check_finite(&network).unwrap_err();
            assert!(error.exit_code() == 6 && error.message.starts_with("1.weight: found"), "{error}");
        }
    }
}
