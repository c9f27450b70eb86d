//! Predicts the size of an optimizer's state.

use briquette_core::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

/// Returns the size in bytes of an optimizer's state for a module's parameters after the first step.
///
/// It is measured by a step with a zero gradient for one parameter at a time, so only the state of one
/// parameter is in memory. This works for any optimizer.
///
/// # Errors
/// Bug: the state cannot be serialized.
pub(crate) fn bytes<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<u64> {
    let mut visitor = MomentRequest { optimizer, module, found: Ok(0) };
    module.visit(&mut visitor);
    visitor.found
}

struct MomentRequest<'a, M> {
    optimizer: &'a ModuleOptimizer,
    module: &'a M,
    found: Result<u64>,
}

impl<M: Module> MomentRequest<'_, M> {
    fn of<const D: usize>(&self, param: &Param<Tensor<D>>) -> Result<u64> {
        let (mut optimizer, mut grads) = (self.optimizer.clone(), GradientsParams::new());
        grads.register(param.id, param.base().without_autodiff().zeros_like());
        let before = written(&optimizer)?;
        drop(optimizer.step(ModuleLearningRate::from(0.0), self.module.clone(), grads));
        Ok(written(&optimizer)?.saturating_sub(before))
    }
}

/// Returns the serialized size of an optimizer's state: its tensors, and a few bytes for names.
fn written(optimizer: &ModuleOptimizer) -> Result<u64> {
    let bytes = optimizer.into_bytes().map_err(|error| Error::bug(format!("the optimizer's state: {error}")))?;
    Ok(bytes.len() as u64)
}

impl<M: Module> ModuleVisitor for MomentRequest<'_, M> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Ok(sum) = &self.found else { return };
        if param.is_require_grad() {
            self.found = self.of(param).map(|found| sum + found);
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::module::ParamGroup;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{AdamConfig, SgdConfig};
    use burn::tensor::Device;

    const N: u64 = 256 * 256;

    fn layer() -> Linear {
        LinearConfig::new(256, 256).with_bias(false).init(&Device::flex().autodiff())
    }

    #[test]
    fn the_size_of_optimizer_state_is_predicted() {
        let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
        let cases = [(AdamConfig::new().init(), 8 * N), (momentum, 4 * N), (SgdConfig::new().init(), 0)];
        for (optimizer, expected) in cases {
            let found = bytes(&optimizer, &layer()).unwrap();
            assert!(found >= expected && found - expected < 4096, "found {found}, expected {expected}");
            assert_eq!(optimizer.to_record().len(), 0, "measuring does not change the optimizer");
        }
    }

    #[test]
    fn parameter_groups_and_frozen_parameters_count_correctly() {
        let mixed = AdamConfig::new().init();
        let still = layer().no_grad();
        assert_eq!(bytes(&mixed, &still).unwrap(), 0);
        let all = bytes(&mixed, &[layer(), layer()]).unwrap();
        let momentum = burn::optim::SgdConfig::new().build();
        let grouped = mixed.with_group(ParamGroup::from_predicate("1"), momentum, None);
        let found = bytes(&grouped, &[layer(), layer()]).unwrap();
        assert!(found < all * 6 / 10, "{found} of {all}");
    }
}
