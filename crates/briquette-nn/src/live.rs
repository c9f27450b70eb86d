//! The attached weights and states of a module, without copying them.

use crate::Attached;
use crate::form::Form;
use crate::module::Trail;
use crate::module::{read_bools, read_f32, unreadable};
use crate::rules::Fingerprint;
use briquette_core::Result;
use briquette_ops::fused::masked::ops;
use burn::module::{Module, ModuleVisitor, Param, ParamId, Reparameterization};
use burn::tensor::{Bool, Device, Int, Tensor};
use std::collections::BTreeMap;

/// A parameter with attached state, still on its device. The tensors are handles, not copies.
pub(crate) struct LiveWeight {
    pub(crate) path: String,
    pub(crate) device: Device,
    base: Tensor<1>,
    dropped: Option<Tensor<1, Bool>>,
    scale: Option<Tensor<1>>,
    rounded: Option<Tensor<1>>,
}

impl LiveWeight {
    /// Returns whether the stored weights can be read in place.
    pub(crate) fn is_on_host(&self) -> bool {
        ops::fake_quantizes(&self.base)
    }

    /// Calls `f` with the stored weights, in the parameter's own order. On the CPU, nothing is copied.
    pub(crate) fn with_values<R>(&self, mut f: impl FnMut(&[f32]) -> R) -> Result<R> {
        match ops::with_floats(&self.base, &mut f) {
            Some(found) => Ok(found),
            None => Ok(f(&read_f32(self.base.clone(), &self.path)?)),
        }
    }

    /// Calls `f` with one byte per weight, 1 for dropped weights; the slice is empty if no rule prunes the
    /// parameter.
    pub(crate) fn with_dropped<R>(&self, mut f: impl FnMut(&[u8]) -> R) -> Result<R> {
        let Some(dropped) = &self.dropped else { return Ok(f(&[])) };
        match ops::with_bools(dropped, &mut f) {
            Some(found) => Ok(found),
            None => {
                let dropped: Vec<u8> = read_bools(dropped.clone(), &self.path)?.into_iter().map(u8::from).collect();
                Ok(f(&dropped))
            }
        }
    }

    /// Returns whether scales have been decided.
    pub(crate) fn has_scales(&self) -> Result<bool> {
        let Some(scale) = &self.scale else { return Ok(false) };
        Ok(read_f32(scale.clone(), &self.path)?.iter().any(|scale| *scale != 0.0))
    }

    /// Returns the weights on a trellis, in the parameter's own order; `None` without one, and before its rule has begun.
    pub(crate) fn rounded(&self) -> Result<Option<Vec<f32>>> {
        match &self.rounded {
            Some(rounded) if self.has_scales()? => read_f32(rounded.clone(), &self.path).map(Some),
            _ => Ok(None),
        }
    }
}

/// Returns the parameters with attached state whose path satisfies `wants`, in module order.
pub(crate) fn live_weights<M: Module>(module: &M, wants: impl Fn(&str) -> bool) -> Vec<LiveWeight> {
    let mut finder = LiveFinder { wants, trail: Trail::default(), found: Vec::new() };
    module.visit(&mut finder);
    finder.found
}

/// Returns the step of the last decision, read from the first parameter with state; 0 without any.
///
/// # Errors
/// Io: the device does not return the tensor.
pub(crate) fn last_step<M: Module>(module: &M) -> Result<usize> {
    let mut reader = StepReader { trail: Trail::default(), step: None };
    module.visit(&mut reader);
    reader.step.unwrap_or(Ok(0))
}

struct LiveFinder<F> {
    wants: F,
    trail: Trail,
    found: Vec<LiveWeight>,
}

impl<F: Fn(&str) -> bool> LiveFinder<F> {
    /// Returns the parameter of the visited field, and the field's name.
    fn field(&mut self) -> Option<(&mut LiveWeight, String)> {
        let (path, name, field) = self.trail.reparameterized()?;
        let last = self.found.last_mut().filter(|last| name == Attached::NAME && last.path == path)?;
        Some((last, field))
    }
}

impl<F: Fn(&str) -> bool> ModuleVisitor for LiveFinder<F> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some((weight, field)) = self.field() {
            let read = || Some(param.base().without_autodiff().reshape([-1]));
            match field.as_str() {
                "scale" => weight.scale = read(),
                "rounded" => weight.rounded = read(),
                _ => {}
            }
        } else if self.trail.reparameterized().is_none() && (self.wants)(&self.trail.path()) {
            let base = param.base().without_autodiff().reshape([-1]);
            let (path, device) = (self.trail.path(), param.lazy_device());
            self.found.push(LiveWeight { path, device, base, dropped: None, scale: None, rounded: None });
        }
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        if let Some((weight, _)) = self.field()
            && param.lazy_shape().num_elements() > 0
        {
            weight.dropped = Some(param.val().reshape([-1]));
        }
    }
}

struct StepReader {
    trail: Trail,
    step: Option<Result<usize>>,
}

impl ModuleVisitor for StepReader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let Some((path, name, field)) = self.trail.reparameterized() else { return };
        if name == Attached::NAME && field == "form" && self.step.is_none() {
            let data = param.val().try_into_data().map_err(|error| unreadable(&path, &error));
            self.step = Some(data.map(|data| Form::step(&data.iter::<i64>().collect::<Vec<_>>())));
        }
    }
}

/// Returns the fingerprint of the rules attached to each parameter and the id of the tensor that stores it, by
/// path.
pub(crate) fn attached_rules<M: Module>(module: &M) -> BTreeMap<String, (Fingerprint, ParamId)> {
    let mut reader = RulesReader::default();
    module.visit(&mut reader);
    reader.found
}

#[derive(Default)]
struct RulesReader {
    trail: Trail,
    found: BTreeMap<String, (Fingerprint, ParamId)>,
}

impl ModuleVisitor for RulesReader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let Some((path, name, field)) = self.trail.reparameterized() else { return };
        if name == Attached::NAME
            && field == "rules"
            && let Ok(extents) = param.lazy_shape().as_slice().try_into()
        {
            self.found.insert(path, (Fingerprint(extents), param.id));
        }
    }
}
