//! The importance of the inputs of layers.

use crate::gradients::{GradientForm, each_gradient};
use briquette_core::{Error, InputStats, OutputAxis, Result};
use briquette_nn::NameMap;
use burn::module::Module;
use burn::tensor::Gradients;
use std::collections::{BTreeMap, BTreeSet};

/// Adds `(Σ_o w[o,i]·∂ℓ/∂w[o,i])²` of a batch for each input `i` of these layers.
///
/// # Errors
/// - Config: roles of the name map match no parameter.
/// - Refused: a gradient is not finite.
/// - Io: the device cannot be read.
pub(super) fn add<M: Module>(
    layers: &mut BTreeMap<String, InputStats>,
    network: &M,
    names: &NameMap,
    gradients: &Gradients,
) -> Result<()> {
    let layer_of = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_string();
    let known: BTreeSet<String> = layers.keys().cloned().collect();
    let wants = |_: &_, name: &str| known.contains(&layer_of(name));
    each_gradient(network, names, (gradients, GradientForm::TimesWeight), wants, &mut |parameter, name, values| {
        let Some(stats) = layers.get_mut(&layer_of(name)) else { return Ok(()) };
        let sums = sums(&values, &parameter.shape.0, parameter.axis, stats.n_inputs());
        let sums = sums.ok_or_else(|| Error::bug("a layer whose inputs do not fit its weight").at(name))?;
        if !sums.iter().all(|sum| sum.is_finite()) {
            return Err(Error::refused("its gradients are not finite; the weights are damaged").at(name));
        }
        stats.importance.resize(sums.len(), 0.0);
        stats.importance.iter_mut().zip(sums).for_each(|(own, sum)| *own += sum * sum);
        Ok(())
    })
}

/// Returns the sum over the outputs of a weight for each input; `None` if `n_inputs` does not fit the shape.
///
/// The inputs of channel groups follow one another.
fn sums(values: &[f32], shape: &[usize], axis: OutputAxis, n_inputs: usize) -> Option<Vec<f64>> {
    let mut sums = vec![0.0; n_inputs];
    match (axis, shape) {
        (OutputAxis::First, [n_rows, ..]) if *n_rows > 0 && n_inputs > 0 => {
            let n_columns = values.len() / n_rows;
            let n_groups = n_inputs.checked_div(n_columns).filter(|n| n * n_columns == n_inputs)?;
            let n_rows_of_group = (n_rows / n_groups.max(1)).max(1);
            for (row, values) in values.chunks_exact(n_columns).enumerate() {
                let start = (row / n_rows_of_group).min(n_groups - 1) * n_columns;
                sums[start..start + n_columns]
                    .iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += f64::from(*value));
            }
            Some(sums)
        }
        (OutputAxis::Last, [rows, columns]) if *rows == n_inputs && *columns > 0 => {
            let of_input = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
            Some(values.chunks_exact(*columns).map(of_input).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_summed_for_each_input() {
        let values: Vec<f32> = (1..=8).map(|value| value as f32).collect();
        assert_eq!(sums(&values, &[4, 2], OutputAxis::First, 2), Some(vec![16.0, 20.0]));
        assert_eq!(sums(&values, &[2, 4], OutputAxis::Last, 2), Some(vec![10.0, 26.0]));
        let grouped = sums(&values, &[4, 2, 1, 1], OutputAxis::First, 4);
        assert_eq!(grouped, Some(vec![4.0, 6.0, 12.0, 14.0]), "two channel groups");
        assert_eq!(sums(&values, &[4, 2], OutputAxis::First, 3), None);
        assert_eq!(sums(&values, &[4, 2], OutputAxis::Last, 2), None);
    }
}
