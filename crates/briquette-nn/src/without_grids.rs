//! Turns a module with grids into one of floats.

use crate::Attached;
use crate::attached::{floats, replaced};
use crate::live::live_weights;
use crate::module::Trail;
use briquette_core::Result;
use burn::module::{Module, ModuleMapper, Param, Reparameterization};
use burn::tensor::Tensor;
use std::collections::BTreeMap;

/// Removes the grids of a module and keeps the masks: the module then computes with its float weights.
///
/// Weights on a trellis become the float weights, because no grid alone leads to them again.
///
/// # Errors
/// Io: a device fails.
pub fn without_grids<M: Module>(module: M) -> Result<M> {
    let mut rounded = BTreeMap::new();
    for weight in live_weights(&module, |_| true) {
        rounded.extend(weight.rounded()?.map(|values| (weight.path, values)));
    }
    Ok(module.map(&mut GridRemover { trail: Trail::default(), rounded }))
}

struct GridRemover {
    trail: Trail,
    /// Weights on a trellis, by path.
    rounded: BTreeMap<String, Vec<f32>>,
}

impl ModuleMapper for GridRemover {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.trail.reparameterized() {
            Some((_, name, field)) if name == Attached::NAME && (field == "scale" || field == "zero") => {
                replaced(param, |n| vec![0.0; n])
            }
            Some(_) => param,
            None => match self.rounded.remove(&self.trail.path()) {
                Some(values) => replaced_all(param, values),
                None => param,
            },
        }
    }
}

/// Replaces the numbers of a tensor and keeps its shape, type and `require_grad`.
fn replaced_all<const D: usize>(param: Param<Tensor<D>>, numbers: Vec<f32>) -> Param<Tensor<D>> {
    let device = param.lazy_device();
    param.map(|old| {
        let new = floats(numbers, &device).reshape(old.shape()).cast(old.dtype());
        if old.is_require_grad() { new.require_grad() } else { new }
    })
}
