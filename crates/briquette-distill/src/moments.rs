//! What an optimizer will remember, before it does.

use briquette_core::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

/// The bytes that an optimizer remembers of a module's parameters after its first step. It is asked, by a step with a gradient of zeros
/// for one parameter at a time, so that there is never more than the moments of one: whatever the optimizer, the answer is its own.
///
/// # Errors
/// Bug where its state cannot be written down.
pub(crate) fn bytes<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<u64> {
    let mut asked = Asked { optimizer, module, found: Ok(0) };
    module.visit(&mut asked);
    asked.found
}

struct Asked<'a, M> {
    optimizer: &'a ModuleOptimizer,
    module: &'a M,
    found: Result<u64>,
}

impl<M: Module> Asked<'_, M> {
    fn of<const D: usize>(&self, param: &Param<Tensor<D>>) -> Result<u64> {
        let (mut optimizer, mut grads) = (self.optimizer.clone(), GradientsParams::new());
        grads.register(param.id, param.base().without_autodiff().zeros_like());
        let before = written(&optimizer)?;
        drop(optimizer.step(ModuleLearningRate::from(0.0), self.module.clone(), grads));
        Ok(written(&optimizer)?.saturating_sub(before))
    }
}

/// The bytes of an optimizer's state as it is written down: its tensors, and a few for their names.
fn written(optimizer: &ModuleOptimizer) -> Result<u64> {
    let bytes = optimizer.into_bytes().map_err(|error| Error::bug(format!("the optimizer's state: {error}")))?;
    Ok(bytes.len() as u64)
}

impl<M: Module> ModuleVisitor for Asked<'_, M> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Ok(sum) = &self.found else { return };
        if param.is_require_grad() {
            self.found = self.of(param).map(|found| sum + found);
        }
    }
}
