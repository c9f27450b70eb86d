//! Sums of squared gradients.

use crate::gradients::{GradientForm, each_gradient};
use briquette_core::{Error, Result};
use briquette_nn::NameMap;
use burn::module::Module;
use burn::tensor::Gradients;
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
        // Summed on the host, because a device's sums depend on its number of threads.
        each_gradient(network, names, (gradients, GradientForm::Plain), |_, _| true, &mut |_, name, values| {
            let sum: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
            *self.0.entry(name.to_string()).or_default() += sum;
            Ok(())
        })
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
