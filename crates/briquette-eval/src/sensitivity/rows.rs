//! Gradients of the rows of embeddings.

use briquette_core::{Error, Result};
use briquette_nn::module::{Trail, read_f32};
use briquette_nn::{NameMap, Probe};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Gradients, Tensor, TensorData};
use std::collections::{BTreeMap, BTreeSet};

/// Adds the gradients of rows that a batch used to a probe, for parameters of two axes with these names in files.
///
/// # Errors
/// - Config: roles of the name map match no parameter.
/// - Refused: a gradient is not finite.
/// - Io: the device cannot be read.
pub(super) fn observe<M: Module>(
    probe: &Probe,
    wanted: &BTreeSet<String>,
    network: &M,
    names: &NameMap,
    gradients: &Gradients,
) -> Result<()> {
    let parameters = names.parameters(network)?;
    let paths: BTreeMap<String, String> =
        parameters.iter().map(|parameter| (parameter.path.clone(), names.file_name(parameter))).collect();
    let paths = paths.into_iter().filter(|(_, name)| wanted.contains(name)).collect();
    let mut visitor = RowVisitor { probe, paths, gradients, trail: Trail::default(), found: Ok(()) };
    network.visit(&mut visitor);
    visitor.found
}

struct RowVisitor<'a> {
    probe: &'a Probe,
    /// The name in files of each wanted parameter, by its path.
    paths: BTreeMap<String, String>,
    gradients: &'a Gradients,
    trail: Trail,
    found: Result<()>,
}

impl RowVisitor<'_> {
    fn observe<const D: usize>(&self, name: &str, gradient: Tensor<D>) -> Result<()> {
        let [_, n_cols] = gradient.dims()[..] else { return Err(Error::bug("an embedding without two axes").at(name)) };
        let device = gradient.device();
        let values = read_f32(gradient.cast(FloatDType::F32), "gradients")?;
        let rows = values.chunks_exact(n_cols.max(1)).filter(|row| row.iter().any(|value| *value != 0.0));
        let used: Vec<f32> = rows.flatten().copied().collect();
        if used.is_empty() {
            return Ok(());
        }
        let shape = [used.len() / n_cols, n_cols];
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        self.probe.observe(layer, &Tensor::<2>::from_data(TensorData::new(used, shape), &device))
    }
}

impl ModuleVisitor for RowVisitor<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Parameters that were not loaded stay uninitialized.
        if self.found.is_ok()
            && param.is_initialized()
            && let Some(name) = self.paths.get(&self.trail.path())
            && let Some(gradient) = param.val().grad(self.gradients)
        {
            self.found = self.observe(name, gradient);
        }
    }
}
