//! Modules in another float type, and loss scaling for f16, in which gradients underflow.

use crate::module::{Trail, unreadable};
use briquette_core::Result;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// Casts whole modules: weights, biases and running statistics. Masks, scales and what burn quantized stay as they are.
///
/// This is for running, and for training with an optimizer that works in the type. Training in half precision over f32
/// weights is `Compression::compute_in` of `briquette-nn`.
///
/// burn's clones of a normalisation share its running statistics, so those of the original module change type too.
pub trait ToDType: Module {
    /// Casts every float to this type.
    #[must_use]
    fn to_dtype(self, dtype: FloatDType) -> Self {
        self.map(&mut Caster { dtype, trail: Trail::default() })
    }

    /// Casts every float to f16.
    #[must_use]
    fn half(self) -> Self {
        self.to_dtype(FloatDType::F16)
    }

    /// Casts every float to bf16.
    #[must_use]
    fn bfloat16(self) -> Self {
        self.to_dtype(FloatDType::BF16)
    }

    /// Casts every float to f32.
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
        let is_quantized = param.is_initialized() && matches!(param.base().dtype(), DType::QFloat(_));
        if is_quantized || self.trail.reparameterized().is_some() {
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

/// Dynamic loss scaling: gradients too small for f16 are multiplied by a factor, and divided by it before the optimizer's step.
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
    /// A scaler with this factor at first, which doubles after this many steps without overflow.
    pub fn new(factor: f32, growth_interval: usize) -> Self {
        Self { factor, growth_interval: growth_interval.max(1), n_good: 0 }
    }

    /// The current factor.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// The loss multiplied by the factor: call `backward` on it.
    pub fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        loss.mul_scalar(self.factor)
    }

    /// Divides gradients by the factor; `None` where one overflowed: skip the step.
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
    /// `Σ 0 · g`: 0, or NaN where a gradient is not finite. So only one number is read from the device, not one a parameter.
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
