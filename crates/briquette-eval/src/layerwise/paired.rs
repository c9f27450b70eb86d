//! Compares the inputs of layers in two runs: of the original model, and of the compressed one.

use super::{BatchProgress, BlockPart, LayerwiseRunner};
use crate::lanes;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::TensorSource;
use briquette_models::graph_net::{AnyTensor, RunInputs};
use briquette_models::{BlockState, EndValues, GraphNet, GroupValues, LinearGroup};
use briquette_nn::Probe;
use briquette_nn::module::cross_product;
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeMap;

/// Statistics of linear layers with the same inputs `x` in the original model and `x̂` in the compressed one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairedInputs {
    /// Statistics of `x̂`, with Gram matrices, by layer.
    pub layers: BTreeMap<String, InputStats>,
    /// `Σ x̂ xᵀ`, `[inputs, inputs]`.
    pub cross: Vec<f64>,
    /// `Σ x̂ (r - r̂)ᵀ`, `[inputs, outputs]`, for layers to whose outputs a value `r` is added.
    pub added: BTreeMap<String, Vec<f64>>,
}

/// The values of a batch in one of the runs.
type BatchInputs = (BlockState, RunInputs);

impl LayerwiseRunner<'_> {
    /// Returns the linear layers of the next block in groups with the same inputs, in the order in which they run.
    ///
    /// # Errors
    /// Config and Input: the checkpoint does not match the architecture.
    pub fn linear_groups(&self) -> Result<Vec<Vec<String>>> {
        let Some(index) = self.next_block() else { return Ok(Vec::new()) };
        let (network, names) = GraphNet::blank(self.arch, self.checkpoint, &self.device)?;
        let named = |group: &LinearGroup| group.paths().map(|path| names.renamed(path)).collect();
        Ok(network.linear_groups(index).iter().map(named).collect())
    }

    /// Runs the next block up to a group of linear layers, here and in a run of the original model, without advancing.
    ///
    /// `weights` are those of this run and of the original one.
    ///
    /// # Errors
    /// - See [`begin`](Self::begin).
    /// - Refused: an input is not finite.
    pub fn observe_both(
        &mut self,
        original: &Self,
        weights: [&dyn TensorSource; 2],
        group: usize,
        progress: BatchProgress,
    ) -> Result<PairedInputs> {
        let index = self.next_block().ok_or_else(|| Error::bug("a layerwise run beyond the last block"))?;
        self.check_before_pair(index)?;
        let (network, names) = self.network(weights[0], BlockPart::Block(index))?;
        let (reference, _) = original.network(weights[1], BlockPart::Block(index))?;
        let groups = network.linear_groups(index);
        let group = groups.get(group).ok_or_else(|| Error::bug("a block without this group"))?;
        let layers: Vec<String> = group.paths().map(|path| names.renamed(path)).collect();
        let (mut found, probe) = (PairedInputs::default(), Probe::with_gram());
        let (n_batches, n_lanes) = (self.batches.len(), self.n_pair_lanes());
        for first in (0..n_batches).step_by(n_lanes) {
            let batches = first..n_batches.min(first + n_lanes);
            let inputs = |batch: usize| {
                let of = |runner: &Self| Ok::<BatchInputs, Error>((runner.state(batch)?, runner.inputs(batch)?));
                Ok([of(self)?, of(original)?])
            };
            let inputs = batches.clone().map(inputs).collect::<Result<Vec<_>>>()?;
            let ran =
                lanes::run(inputs, |inputs| PairedBatch::of([&network, &reference], index, group, inputs, &layers))?;
            for (batch, ran) in batches.zip(ran) {
                ran.add_to(&mut found, &probe, &layers)?;
                self.check_memory(&format!("in block {index}"))?;
                progress(batch + 1, n_batches)?;
            }
        }
        let stats = probe.take_stats();
        let stats = stats.into_values().next().ok_or_else(|| Error::input("the layers received no input"))?;
        found.layers = layers.into_iter().map(|layer| (layer, stats.clone())).collect();
        Ok(found)
    }
}

/// Statistics of the last linear layer of a block, beside the values that should follow the block.
#[derive(Debug, Clone, PartialEq)]
pub struct GapInputs {
    /// The layer, by the name of its weight in files without `.weight`.
    pub layer: String,
    /// Statistics of its inputs `x`, with a Gram matrix. If a norm follows, each `x` is divided by what the norm divides by.
    pub stats: InputStats,
    /// `Σ x eᵀ`, `[inputs, outputs]`: `e` is what the block's output lacks, divided by the norm's weight.
    pub lacking: Vec<f64>,
}

impl LayerwiseRunner<'_> {
    /// Passes over the next block without running it.
    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Runs the next block without advancing, and compares its output with the hidden states that `original` has now.
    ///
    /// `None` if the output is no sum of a linear layer and a residual stream, with or without a norm.
    ///
    /// # Errors
    /// - See [`begin`](Self::begin).
    /// - Refused: an input is not finite.
    pub fn observe_gap(
        &mut self,
        original: &Self,
        weights: &dyn TensorSource,
        progress: BatchProgress,
    ) -> Result<Option<GapInputs>> {
        let index = self.next_block().ok_or_else(|| Error::bug("a layerwise run beyond the last block"))?;
        self.check_before_pair(index)?;
        let (network, names) = self.network(weights, BlockPart::Block(index))?;
        let Some(end) = network.block_end(index) else { return Ok(None) };
        let layer = names.renamed(end.path());
        let (mut lacking, probe) = (Vec::new(), Probe::with_gram());
        for batch in 0..self.batches.len() {
            let (state, inputs) = (self.state(batch)?, self.inputs(batch)?);
            let values = network.end_values(index, &end, state.clone(), &inputs);
            let output = samples(network.block(index, state, &inputs).hidden().into());
            let (x, error) = before_norm(values, samples(original.state(batch)?.hidden().into()) - output);
            probe.observe(&layer, &x)?;
            add(&mut lacking, &cross_product(&x, &error, &layer)?);
            self.check_memory(&format!("in block {index}"))?;
            progress(batch + 1, self.batches.len())?;
        }
        let stats = probe.take_stats().into_values().next();
        Ok(stats.map(|stats| GapInputs { layer, stats, lacking }))
    }
}

/// The sums of a batch.
struct PairedBatch {
    /// The inputs in the compressed model, `[samples, inputs]`.
    inputs: Tensor<2>,
    cross: Vec<f32>,
    added: Vec<Option<Vec<f32>>>,
}

impl PairedBatch {
    fn of(
        [compressed, original]: [&GraphNet; 2],
        index: usize,
        group: &LinearGroup,
        [(state, inputs), (own_state, own_inputs)]: [BatchInputs; 2],
        layers: &[String],
    ) -> Result<Self> {
        let found = compressed.group_values(index, group, state, &inputs);
        let own: GroupValues = original.group_values(index, group, own_state, &own_inputs);
        let (x, own_x) = (samples(found.input), samples(own.input));
        let name = layers.first().map_or("", String::as_str);
        let cross = cross_product(&x, &own_x, name)?;
        let drift = |(found, own): (Option<AnyTensor>, Option<AnyTensor>)| {
            let both = found.zip(own);
            both.map(|(found, own)| cross_product(&x, &(samples(own) - samples(found)), name)).transpose()
        };
        let added = found.added.into_iter().zip(own.added).map(drift).collect::<Result<_>>()?;
        Ok(Self { inputs: x, cross, added })
    }

    fn add_to(self, found: &mut PairedInputs, probe: &Probe, layers: &[String]) -> Result<()> {
        let name = layers.first().map_or("", String::as_str);
        probe.observe(name, &self.inputs)?;
        add(&mut found.cross, &self.cross);
        for (layer, added) in layers.iter().zip(self.added) {
            if let Some(added) = added {
                add(found.added.entry(layer.clone()).or_default(), &added);
            }
        }
        Ok(())
    }
}

/// Returns the inputs of a block's last layer and what its output lacks, from what the block's output lacks.
///
/// A norm after the layer multiplies small changes by its weight and divides them by its divisors. Least squares of the block's output are
/// therefore those of `error / weight` by `input / divisor`. Where the weight is 0, nothing is lacking.
fn before_norm(values: EndValues, error: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let input = samples(values.input);
    let Some((divisors, factors)) = values.divisors.zip(values.factors) else { return (input, error) };
    let factors = factors.unsqueeze::<2>().expand(error.dims());
    let is_zero = factors.clone().equal_elem(0.0);
    (input / samples(divisors), (error / factors).mask_fill(is_zero, 0.0))
}

/// Returns values `[.., width]` as `[samples, width]` in f32.
fn samples(values: AnyTensor) -> Tensor<2> {
    let width = values.dims().last().copied().unwrap_or(1);
    let n = values.dims().iter().product::<usize>() / width.max(1);
    values.reshaped(&[n, width]).two().cast(FloatDType::F32)
}

fn add(sum: &mut Vec<f64>, values: &[f32]) {
    sum.resize(values.len(), 0.0);
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
}
