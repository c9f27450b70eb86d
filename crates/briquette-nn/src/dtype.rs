//! Modules in another float type, and loss scaling for the one that underflows.

use crate::parameters::Trail;
use crate::weights::unreadable;
use briquette_core::Result;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// Casts whole modules: weights, biases and running statistics. Masks and scales stay as they are.
///
/// This is for running, and for training with an optimizer that bears the type; training in half precision over f32
/// weights is [`Compression::compute_in`](crate::Compression::compute_in).
///
/// burn's clones of a normalisation share its running statistics: those of the module it was cloned from become this type too.
pub trait ToDType: Module {
    /// Every float in this type.
    #[must_use]
    fn to_dtype(self, dtype: FloatDType) -> Self {
        self.map(&mut Caster { dtype, trail: Trail::default() })
    }

    /// f16.
    #[must_use]
    fn half(self) -> Self {
        self.to_dtype(FloatDType::F16)
    }

    /// bf16.
    #[must_use]
    fn bfloat16(self) -> Self {
        self.to_dtype(FloatDType::BF16)
    }

    /// f32.
    #[must_use]
    fn single(self) -> Self {
        self.to_dtype(FloatDType::F32)
    }
}

impl<M: Module> ToDType for M {}

struct Caster {
    dtype: FloatDType,
    trail: Trail,
}

impl ModuleMapper for Caster {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.trail.reparameterized().is_some() {
            return param;
        }
        param.map(|tensor| {
            let (is_autodiff, is_trained) = (tensor.is_autodiff(), tensor.is_require_grad());
            let cast = tensor.without_autodiff().cast(self.dtype);
            match (is_autodiff, is_trained) {
                (true, true) => cast.autodiff().require_grad(),
                (true, false) => cast.autodiff(),
                _ => cast,
            }
        })
    }
}

/// Dynamic loss scaling: gradients too small for f16 are lifted by a factor and brought back before the step.
///
/// The factor starts at 2^16, halves when a gradient overflows (that step is skipped), and doubles after 2000 steps
/// without. Source: Micikevicius et al., "Mixed Precision Training", 2018; `torch.amp.GradScaler`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    factor: f32,
    growth_interval: usize,
    n_good: usize,
}

impl Default for LossScaler {
    fn default() -> Self {
        Self { factor: 65_536.0, growth_interval: 2000, n_good: 0 }
    }
}

impl LossScaler {
    /// A factor to start with, and after how many good steps it doubles.
    pub fn new(factor: f32, growth_interval: usize) -> Self {
        Self { factor, growth_interval: growth_interval.max(1), n_good: 0 }
    }

    /// The factor now.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// The loss to call `backward` on.
    pub fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        loss.mul_scalar(self.factor)
    }

    /// Gradients of the loss itself; `None` where one overflowed: skip the step.
    ///
    /// # Errors
    /// Io, where the device fails.
    pub fn unscale<M: Module>(&mut self, grads: GradientsParams, module: &M) -> Result<Option<GradientsParams>> {
        let mut unscaler = Unscaler { factor: self.factor, grads, poison: None };
        module.visit(&mut unscaler);
        let poison = unscaler.poison.map(|poison| poison.try_into_data().map_err(|e| unreadable("gradients", &e)));
        let is_finite = poison.transpose()?.is_none_or(|data| data.iter::<f32>().all(f32::is_finite));
        if !is_finite {
            (self.factor, self.n_good) = ((self.factor / 2.0).max(1.0), 0);
            return Ok(None);
        }
        self.n_good += 1;
        if self.n_good == self.growth_interval {
            (self.factor, self.n_good) = ((self.factor * 2.0).min(16_777_216.0), 0);
        }
        Ok(Some(unscaler.grads))
    }
}

struct Unscaler {
    factor: f32,
    grads: GradientsParams,
    /// `Σ 0 · g`: 0, or NaN where a gradient is not finite. One number to read, not one for each parameter.
    poison: Option<Tensor<1>>,
}

impl ModuleVisitor for Unscaler {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        let grad = grad.cast(FloatDType::F32).div_scalar(self.factor);
        let poison = grad.clone().mul_scalar(0.0).sum();
        self.poison = Some(match self.poison.take() {
            Some(sum) => sum + poison,
            None => poison,
        });
        let grad: Tensor<D> = grad.cast(param.base().dtype());
        self.grads.register(param.id, grad);
    }
}
