//! Operations on the gradients of all parameters.

use briquette_core::{Error, ErrorKind, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

/// Reads numbers from a device. A device that ran out of memory fails here.
pub(crate) fn read(numbers: Tensor<1>) -> Result<Vec<f32>> {
    let failed = |what: String| Error { kind: ErrorKind::Io, ..Error::bug(format!("the device failed: {what}")) };
    let data = numbers.without_autodiff().try_into_data().map_err(|error| failed(error.to_string()))?;
    data.convert::<f32>().try_into_vec().map_err(|error| failed(format!("{error:?}")))
}

/// Returns whether a device ran out of memory. burn and CubeCL report this only in the message.
pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    error.kind == ErrorKind::Io && error.message.contains("out of device memory")
}

/// Returns `√ Σ g²` over the gradients of all parameters.
pub(crate) fn norm<M: Module>(grads: &GradientsParams, module: &M) -> Result<f64> {
    let mut squares = Squares { grads, sum: None };
    module.visit(&mut squares);
    let Some(sum) = squares.sum else { return Ok(0.0) };
    Ok(f64::from(read(sum)?.first().copied().unwrap_or(0.0)).sqrt())
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let squares = grad.cast(FloatDType::F32).square().sum();
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + squares,
            None => squares,
        });
    }
}

/// Removes and returns the gradients of a module's parameters.
pub(crate) fn split_off<M: Module>(grads: &mut GradientsParams, module: &M) -> GradientsParams {
    let mut taker = Taker { from: grads, taken: GradientsParams::new() };
    module.visit(&mut taker);
    taker.taken
}

struct Taker<'a> {
    from: &'a mut GradientsParams,
    taken: GradientsParams,
}

impl ModuleVisitor for Taker<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.from.remove::<D>(param.id) {
            self.taken.register(param.id, grad);
        }
    }
}

/// Multiplies every gradient by `factor`.
pub(crate) fn scaled<M: Module>(grads: GradientsParams, module: &M, factor: f64) -> GradientsParams {
    let mut scaler = Scaler { grads, factor };
    module.visit(&mut scaler);
    scaler.grads
}

struct Scaler {
    grads: GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Scaler {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.grads.register(param.id, grad * self.factor);
        }
    }
}
