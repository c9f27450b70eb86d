//! Casts modules to another float type; loss scaling for f16, in which gradients underflow.

use crate::module::{Trail, unreadable};
use briquette_core::Result;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// Casts whole modules: weights, biases and running statistics. Masks, scales and quantized tensors stay
/// unchanged.
///
/// Use it to run a module, or to train it with an optimizer that works in the type. To train f32 weights with
/// half-precision arithmetic, use [`Compression::compute_in`](crate::Compression::compute_in).
///
/// burn's clones of a batch norm share running statistics, so the statistics of the original module change type
/// too.
pub trait ToDType: Module {
    /// Casts every float tensor to this type.
    #[must_use]
    fn to_dtype(self, dtype: FloatDType) -> Self {
        self.map(&mut Caster { dtype, trail: Trail::default() })
    }

    /// Casts every float tensor to f16.
    #[must_use]
    fn half(self) -> Self {
        self.to_dtype(FloatDType::F16)
    }

    /// Casts every float tensor to bf16.
    #[must_use]
    fn bfloat16(self) -> Self {
        self.to_dtype(FloatDType::BF16)
    }

    /// Casts every float tensor to f32.
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

/// Dynamic loss scaling for f16: multiplies the loss by a factor and divides the gradients by it.
///
/// The factor starts at 2^16. It halves when a gradient overflows, and that step is skipped. It doubles after
/// 2000 steps without overflow. Source: Micikevicius et al., "Mixed Precision Training", 2018;
/// `torch.amp.GradScaler`.
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
    /// Creates a scaler with an initial factor, which doubles after `growth_interval` steps without overflow.
    pub fn new(factor: f32, growth_interval: usize) -> Self {
        Self { factor, growth_interval: growth_interval.max(1), n_good: 0 }
    }

    /// Returns the current factor.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Multiplies the loss by the factor; call `backward` on the result.
    pub fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        loss.mul_scalar(self.factor)
    }

    /// Divides the gradients by the factor; returns `None` after an overflow, when the step must be skipped.
    ///
    /// # Errors
    /// Io: the device fails.
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
    /// `Σ 0 · g`: 0, or NaN if a gradient is not finite. So only one number is read from the device, not one
    /// per parameter.
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
