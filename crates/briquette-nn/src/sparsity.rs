//! Counts zeros among the effective weights of a module.

use crate::weights::for_each_weight;
use briquette_core::{Decision, Result};
use burn::module::Module;
use std::collections::BTreeMap;

/// Zeros among weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sparsity {
    /// Number of weights that are exactly zero.
    pub n_zeros: usize,
    /// Number of weights.
    pub n_weights: usize,
}

impl Sparsity {
    /// Returns `zeros / weights`; 0 without weights.
    pub fn ratio(&self) -> f64 {
        self.n_zeros as f64 / self.n_weights.max(1) as f64
    }
}

impl std::iter::Sum for Sparsity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |a, b| Self { n_zeros: a.n_zeros + b.n_zeros, n_weights: a.n_weights + b.n_weights })
    }
}

/// Counts the zeros of every float parameter, by path, on effective weights: masked and fake-quantized.
///
/// # Errors
/// Io: a device does not return a tensor.
pub fn sparsity<M: Module>(module: &M) -> Result<BTreeMap<String, Sparsity>> {
    let mut found = BTreeMap::new();
    for_each_weight(module, |weight| {
        let effective = weight.effective();
        let n_zeros = effective.iter().filter(|&&value| value == 0.0).count();
        found.insert(weight.parameter.path, Sparsity { n_zeros, n_weights: effective.len() });
        Ok(())
    })?;
    Ok(found)
}

/// Returns the decision attached to each parameter, by path; parameters without one are left out.
///
/// # Errors
/// Io: a device does not return a tensor.
pub fn decisions<M: Module>(module: &M) -> Result<BTreeMap<String, Decision>> {
    let mut found = BTreeMap::new();
    for_each_weight(module, |weight| {
        if weight.decision != Decision::default() {
            found.insert(weight.parameter.path, weight.decision);
        }
        Ok(())
    })?;
    Ok(found)
}
