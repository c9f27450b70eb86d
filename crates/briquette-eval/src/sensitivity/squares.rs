//! Sums of squared gradients.

use briquette_core::{Error, Result};
use briquette_nn::NameMap;
use briquette_nn::module::{Trail, read_f32};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Gradients, Tensor};
use std::collections::BTreeMap;

/// The sum of squared gradients of each parameter, by its name in files.
#[derive(Default)]
pub(super) struct GradientSquares(BTreeMap<String, f64>);

impl GradientSquares {
    /// Adds the gradients of a network's parameters that have any.
    ///
    /// # Errors
    /// - Config: roles of the name map match no parameter.
    /// - Io: the device cannot be read.
    pub(super) fn add<M: Module>(&mut self, network: &M, names: &NameMap, gradients: &Gradients) -> Result<()> {
        let mut visitor = Visitor { gradients, trail: Trail::default(), found: Ok(Vec::new()) };
        network.visit(&mut visitor);
        let known = names.parameters(network)?;
        let known: BTreeMap<&str, _> = known.iter().map(|parameter| (parameter.path.as_str(), parameter)).collect();
        for (path, sum) in visitor.found? {
            let Some(parameter) = known.get(path.as_str()) else { continue };
            *self.0.entry(names.file_name(parameter)).or_default() += sum;
        }
        Ok(())
    }

    /// Returns the sums divided by a number of items.
    ///
    /// # Errors
    /// Refused: a sum is not finite.
    pub(super) fn over(self, n: usize) -> Result<BTreeMap<String, f64>> {
        if let Some(name) = self.0.iter().find_map(|(name, sum)| (!sum.is_finite()).then_some(name)) {
            return Err(Error::refused("its gradients are not finite; the weights are damaged").at(name));
        }
        Ok(self.0.into_iter().map(|(name, sum)| (name, sum / n.max(1) as f64)).collect())
    }
}

struct Visitor<'a> {
    gradients: &'a Gradients,
    trail: Trail,
    found: Result<Vec<(String, f64)>>,
}

impl ModuleVisitor for Visitor<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Parameters that were not loaded stay uninitialized.
        if param.is_initialized()
            && let Some(gradient) = param.val().grad(self.gradients)
            && let Ok(found) = &mut self.found
        {
            // Summed on the host, because a device's sums depend on its number of threads.
            match read_f32(gradient.cast(FloatDType::F32), "gradients") {
                Ok(values) => {
                    found.push((self.trail.path(), values.iter().map(|&value| f64::from(value).powi(2)).sum()))
                }
                Err(error) => self.found = Err(error),
            }
        }
    }
}
