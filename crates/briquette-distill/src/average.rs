//! Mean teacher: the teacher is the student's own average over time.
//!
//! Source: Tarvainen and Valpola, "Mean teachers are better role models", 2017, eq. 1; the ramp is that of
//! their published code.

use briquette_core::{Error, Result};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor};
use std::collections::VecDeque;

/// Returns the initial average: a copy of the student as it computes now, on the plain device and without
/// gradients.
///
/// # Errors
/// Config: a weight is not f32, so small steps would be lost.
pub(crate) fn started<N: Module>(student: &N) -> Result<N> {
    let mut types = Types::default();
    let average = student.valid().materialize();
    average.visit(&mut types);
    match types.other {
        Some(dtype) => Err(Error::config(format!(
            "mean_teacher: the student has {dtype:?} weights, too coarse for an average; use f32 weights"
        ))),
        None => Ok(average.map(&mut Renamed)),
    }
}

/// Returns the average after a step: `θ' = α θ' + (1 - α) θ` with `α = min(decay, 1 - 1/(step + 1))`.
///
/// In the first steps this is the plain mean. `θ` are the weights that the student computes with, with masks
/// and grids applied. Running statistics are averaged like weights.
pub(crate) fn updated<N: Module>(average: N, student: &N, decay: f64, step: usize) -> Result<N> {
    let mut values = FlatParameters::default();
    student.valid().materialize().visit(&mut values);
    let keep = decay.min(1.0 - 1.0 / (step as f64 + 1.0));
    let mut towards = Towards { values: values.0, keep };
    let average = average.map(&mut towards);
    match towards.values.is_empty() {
        true => Ok(average),
        false => Err(Error::bug("the average has other weights than the student")),
    }
}

/// Finds a type other than f32.
#[derive(Default)]
struct Types {
    other: Option<DType>,
}

impl ModuleVisitor for Types {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let dtype = param.val().dtype();
        if dtype != DType::F32 {
            self.other = Some(dtype);
        }
    }
}

/// Gives each parameter a new ID, because gradients and optimizer state are keyed by ID and the average has
/// neither.
struct Renamed;

impl ModuleMapper for Renamed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (_, tensor, mapper) = param.consume();
        Param::from_mapped_value(ParamId::new(), tensor.set_require_grad(false), mapper)
    }
}

/// The values of all parameters, flattened, in order.
#[derive(Default)]
struct FlatParameters(VecDeque<Tensor<1>>);

impl ModuleVisitor for FlatParameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let n = value.shape().num_elements();
        self.0.push_back(value.reshape([n]));
    }
}

/// Moves each parameter towards the next of these values.
struct Towards {
    values: VecDeque<Tensor<1>>,
    keep: f64,
}

impl ModuleMapper for Towards {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.values.pop_front() else { return param };
        let (id, tensor, mapper) = param.consume();
        let value = value.reshape(tensor.dims()).cast(tensor.dtype());
        let moved = tensor * self.keep + value * (1.0 - self.keep);
        Param::from_mapped_value(id, moved, mapper)
    }
}
