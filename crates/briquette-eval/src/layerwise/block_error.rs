//! The error of a block's outputs, and its gradients at the block's weights.

use super::{BlockPart, LayerwiseRunner};
use crate::gradients::{GradientForm, each_gradient};
use briquette_core::{Error, Result, Rows};
use briquette_formats::TensorSource;
use briquette_models::{BlockState, GraphNet, HostValue, still};
use briquette_nn::NameMap;
use briquette_nn::module::Parameter;
use burn::tensor::Gradients;
use std::collections::BTreeMap;

impl LayerwiseRunner<'_> {
    /// Returns the mean squared error of the next block's outputs, over all batches.
    ///
    /// `target` is a run of the original model that has run this block already.
    ///
    /// # Errors
    /// - See [`begin`](Self::begin).
    /// - Bug: the runs are not at these blocks.
    pub fn block_error(&self, weights: &dyn TensorSource, target: &Self) -> Result<f64> {
        let index = self.block_before(target)?;
        let (network, _) = self.network(weights, BlockPart::Block(index))?;
        let (mut sum, mut n) = (0.0, 0);
        for batch in 0..self.batches.len() {
            let found = network.block(index, self.state(batch)?, &self.inputs(batch)?);
            let off = difference(&found, &target.state(batch)?)?;
            sum += squares(&off);
            n += off.iter().map(|(_, values)| values.len()).sum::<usize>();
            self.check_memory(&format!("in block {index}"))?;
        }
        Ok(sum / n.max(1) as f64)
    }

    /// Returns half the gradient of the summed squared error of some batches at each weight of the next block.
    ///
    /// Gradients are row-major, `[outputs, inputs]`, by the weights' names in files. See [`block_error`](Self::block_error).
    ///
    /// # Errors
    /// See [`block_error`](Self::block_error).
    pub fn block_gradients(
        &self,
        weights: &dyn TensorSource,
        target: &Self,
        batches: &[usize],
    ) -> Result<BTreeMap<String, Vec<f32>>> {
        let (index, device) = (self.block_before(target)?, self.device.clone().autodiff());
        let (network, names) = self.network_on(weights, BlockPart::Block(index), &device)?;
        let network = still(network);
        let mut sums: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for &batch in batches {
            let state = self.state(batch)?.leaves();
            let found = network.block(index, state, &self.batches[batch].inputs(&device)?);
            let off = difference(&found, &target.state(batch)?)?;
            let gradients = found.dot(BlockState::from_host(off, &self.device))?.backward();
            self.check_memory("while rounding is learned")?;
            for (name, gradient) in gradients_of(&network, &names, &gradients)? {
                let sum = sums.entry(name).or_insert_with(|| vec![0.0; gradient.len()]);
                sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
            }
        }
        Ok(sums)
    }

    /// Returns the batches in an order that mixes their lengths, in parts of at least `n_positions` tokens or images where
    /// there are as many.
    pub fn mixed_batches(&self, n_positions: usize) -> Vec<Vec<usize>> {
        let mut parts = vec![Vec::new()];
        let mut n = 0;
        for batch in mixed(self.batches.len()) {
            if n >= n_positions {
                parts.push(Vec::new());
                n = 0;
            }
            n += self.batches[batch].most_positions();
            parts.iter_mut().next_back().into_iter().for_each(|part| part.push(batch));
        }
        parts
    }

    /// Returns the next block, which `target` has run already.
    fn block_before(&self, target: &Self) -> Result<usize> {
        let index = self.next_block().ok_or_else(|| Error::bug("a layerwise run beyond the last block"))?;
        match target.next == self.next + 1 {
            true => Ok(index),
            false => Err(Error::bug("runs at other blocks")),
        }
    }
}

/// Returns the numbers below `n` in an order in which neighbours are far apart.
fn mixed(n: usize) -> impl Iterator<Item = usize> {
    let divides_both = |stride: &usize| (2..=*stride).any(|d| stride.is_multiple_of(d) && n.is_multiple_of(d));
    // The golden ratio spreads multiples evenly.
    let near = (n as f64 * 0.618) as usize;
    let stride = (1..=near).rev().find(|stride| !divides_both(stride)).unwrap_or(1);
    (0..n).map(move |i| i * stride % n)
}

/// Returns `found - expected`, value by value.
fn difference(found: &BlockState, expected: &BlockState) -> Result<Vec<HostValue>> {
    let (mut found, expected) = (found.to_host()?, expected.to_host()?);
    for ((dims, found), (other, expected)) in found.iter_mut().zip(&expected) {
        if dims != other {
            return Err(Error::bug("states of different blocks"));
        }
        found.iter_mut().zip(expected).for_each(|(found, expected)| *found -= expected);
    }
    Ok(found)
}

fn squares(values: &[HostValue]) -> f64 {
    values.iter().flat_map(|(_, values)| values).map(|&value| f64::from(value).powi(2)).sum()
}

/// Returns the gradients of a network's weights by their names in files, row-major.
fn gradients_of(network: &GraphNet, names: &NameMap, gradients: &Gradients) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut found = BTreeMap::new();
    // Vectors are not rounded.
    let is_matrix = |parameter: &Parameter, _: &str| parameter.shape.0.len() > 1;
    each_gradient(network, names, (gradients, GradientForm::Plain), is_matrix, &mut |parameter, name, values| {
        found.insert(name.to_string(), by_rows(parameter, values));
        Ok(())
    })?;
    Ok(found)
}

/// Returns values in a parameter's own order as rows of outputs.
fn by_rows(parameter: &Parameter, values: Vec<f32>) -> Vec<f32> {
    let rows = Rows::of(&parameter.shape, parameter.axis);
    if !rows.axis.is_turned() {
        return values;
    }
    let mut turned = vec![0.0_f32; values.len()];
    rows.turn(bytemuck::cast_slice(&values), bytemuck::cast_slice_mut(&mut turned), 4);
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_order_has_every_number_once() {
        for n in [1, 2, 3, 6, 12, 30, 97, 128] {
            let mut found: Vec<usize> = mixed(n).collect();
            assert!(n < 12 || found.windows(2).all(|two| two[0].abs_diff(two[1]) > n / 4), "{found:?}");
            found.sort_unstable();
            assert_eq!(found, (0..n).collect::<Vec<_>>());
        }
    }
}
