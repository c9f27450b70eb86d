//! Gradients of the rows of embeddings.

use crate::gradients::{GradientForm, each_gradient};
use briquette_core::{Error, Result};
use briquette_nn::{NameMap, Probe};
use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use std::collections::BTreeSet;

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
    each_gradient(
        network,
        names,
        (gradients, GradientForm::Plain),
        |_, name| wanted.contains(name),
        &mut |parameter, name, values| {
            let [_, n_cols] = parameter.shape.0[..] else {
                return Err(Error::bug("an embedding without two axes").at(name));
            };
            let rows = values.chunks_exact(n_cols.max(1)).filter(|row| row.iter().any(|value| *value != 0.0));
            let used: Vec<f32> = rows.flatten().copied().collect();
            if used.is_empty() {
                return Ok(());
            }
            let shape = [used.len() / n_cols, n_cols];
            let layer = name.strip_suffix(".weight").unwrap_or(name);
            probe.observe(layer, &Tensor::<2>::from_data(TensorData::new(used, shape), &Device::flex()))
        },
    )
}
