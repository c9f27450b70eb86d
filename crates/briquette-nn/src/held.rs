//! Counts in which form the weights of a module are held.

use crate::Packed;
use crate::packed::NAMES;
use crate::parameters::Trail;
use burn::module::{Module, ModuleVisitor, Param, Reparameterization};
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The parameters that are held in one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Number of parameters.
    pub n_tensors: usize,
    /// Number of weights, zeros too.
    pub n_weights: usize,
    /// Bytes that they take in memory.
    pub n_bytes: usize,
}

/// The forms in which the float parameters of a module are held: `int8` and `sparse int8` are multiplied as integers,
/// `int8 weight-only` and `int4` become floats in registers, tables are looked up, `int8 as floats` is decoded for each use; `f32` and the
/// like are floats. burn's own layers do not know codes, so there all of them are decoded for each use.
pub fn held<M: Module>(module: &M) -> BTreeMap<String, Held> {
    let mut count = Count::default();
    module.visit(&mut count);
    count.push_last();
    count.found
}

#[derive(Default)]
struct Count {
    trail: Trail,
    last: Option<(String, Held)>,
    found: BTreeMap<String, Held>,
}

impl Count {
    fn push_last(&mut self) {
        if let Some((name, held)) = self.last.take() {
            let sum = self.found.entry(name).or_default();
            sum.n_tensors += held.n_tensors;
            sum.n_weights += held.n_weights;
            sum.n_bytes += held.n_bytes;
        }
    }
}

impl ModuleVisitor for Count {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.trail.reparameterized().is_some() {
            return;
        }
        self.push_last();
        let n_weights = param.lazy_shape().num_elements();
        let dtype = if param.is_initialized() { param.base().dtype() } else { burn::tensor::DType::F32 };
        let held = Held { n_tensors: 1, n_weights, n_bytes: n_weights * dtype.size() };
        self.last = Some((dtype.name().to_string(), held));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let is_ours = self.trail.reparameterized().is_some_and(|(_, name, _)| name == Packed::NAME);
        if let (true, Some((name, held)), Ok(data)) = (is_ours, &mut self.last, param.val().try_into_data()) {
            let numbers: Vec<i64> = data.iter::<i64>().collect();
            *name = NAMES.get(numbers[0] as usize).copied().unwrap_or_default().to_string();
            held.n_bytes = numbers[1] as usize;
        }
    }
}
