//! Observes values of a network over data: ranges, histograms and means of channels. Activations are not stored.

use crate::outputs::ItemProgress;
use crate::samples::{RunBatch, Samples, no_item, run_batches};
use briquette_core::{Affine, ColumnScales, Error, Grid, GridKind, Result, simd};
use briquette_formats::Checkpoint;
use briquette_graph::ValueId;
use briquette_methods::quant::{ActivationHistogram, ActivationRange};
use briquette_models::data::{Data, DataSpec};
use briquette_models::graph_net::AnyTensor;
use briquette_models::{Arch, GraphNet, Input};
use briquette_nn::load_some;
use burn::tensor::Device;
use std::collections::BTreeMap;

/// Bins of a histogram, as onnxruntime has.
const N_BINS: usize = 2048;

/// A value to observe.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedValue {
    /// The value.
    pub id: ValueId,
    /// The observed value whose range it has: itself, or the input of a pool or reshape.
    pub range_of: ValueId,
    /// Scales of columns, which the value is multiplied by before it is rounded.
    pub columns: Option<ColumnScales>,
}

impl ObservedValue {
    /// Describes a value without scales of columns.
    pub fn new(id: ValueId, range_of: ValueId) -> Self {
        Self { id, range_of, columns: None }
    }
}

/// The range and the channels of a value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueStatistics {
    /// The range that a grid covers; it includes 0.
    pub bounds: [f32; 2],
    /// The mean of each channel.
    pub means: Vec<f64>,
    /// The mean of each channel after its values are rounded to the grid.
    pub rounded_means: Vec<f64>,
}

impl ValueStatistics {
    /// Returns the 8-bit grid over the bounds.
    pub fn affine(&self) -> Affine {
        Affine::over(self.bounds[0], self.bounds[1], grid())
    }
}

fn grid() -> Grid {
    Grid::new(8, GridKind::Asymmetric).expect("8 bits are a width")
}

/// The statistics of the observed values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueRanges {
    /// The statistics of each value.
    pub values: BTreeMap<ValueId, ValueStatistics>,
    /// The number of images that ran.
    pub n_items: usize,
    /// The number of images that did not decode.
    pub n_skipped: usize,
}

/// Runs a network of images or texts over data two or three times, and chooses the range of each of these values.
///
/// The first run gathers the smallest and largest value and the means of channels; the second fills histograms, unless the range is
/// [`ActivationRange::MinMax`]; the last gathers the means of rounded channels. Memory holds one batch, and a histogram for each value.
///
/// # Errors
/// - Config: the network or the data are neither images nor texts, or the network lacks a value.
/// - Input: an image is damaged and the data is strict, or no image can be used.
/// - Refused: a value is not finite.
pub fn value_ranges(
    checkpoint: &Checkpoint,
    arch: Arch,
    device: &Device,
    (data, spec): (&Data, &DataSpec),
    (samples, range): (Samples, ActivationRange),
    observed: &[ObservedValue],
    progress: ItemProgress,
) -> Result<ValueRanges> {
    let mut input = arch.input(checkpoint)?;
    if !matches!(input, Input::Images(_) | Input::Text { .. }) {
        return Err(Error::config(format!("found {arch}, expected a network of images or texts; use int8-dynamic")));
    }
    let batches = run_batches(arch, &mut input, data, spec, samples)?;
    let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
    let network = load_some(network, checkpoint, checkpoint.layout(), &names, &|_| true)?;
    let n_passes = if range == ActivationRange::MinMax { 2 } else { 3 };
    let values = observed.iter().map(|value| value.id).collect();
    let columns = observed.iter().filter_map(|value| Some((value.id, value.columns.clone()?))).collect();
    let mut runs = Runs { network, batches, values, columns, device, n_passes, n_done: 0 };
    let (extremes, n_items) = runs.extremes(progress)?;
    if n_items == 0 {
        return Err(no_item(spec));
    }
    let mut found = ValueRanges { n_items, n_skipped: runs.n_images() - n_items, ..ValueRanges::default() };
    let histograms = match range {
        ActivationRange::MinMax => BTreeMap::new(),
        _ => runs.histograms(&extremes, progress)?,
    };
    let bounds = |id: ValueId| match histograms.get(&id) {
        Some(histogram) => range.bounds(histogram),
        None => range.bounds(&ActivationHistogram::new(extremes[&id].low, extremes[&id].high, 1)),
    };
    for value in observed {
        let means = extremes[&value.id].channels.means();
        let statistics = ValueStatistics { bounds: bounds(value.range_of), means, rounded_means: Vec::new() };
        found.values.insert(value.id, statistics);
    }
    for (id, channels) in runs.rounded(&found.values, progress)? {
        found.values.entry(id).or_default().rounded_means = channels.means();
    }
    Ok(found)
}

/// The smallest and largest value so far, and the sums of channels.
#[derive(Debug, Clone)]
struct Extremes {
    low: f32,
    high: f32,
    channels: ChannelSums,
}

/// Sums of the values of each channel.
#[derive(Debug, Clone, Default, PartialEq)]
struct ChannelSums {
    sums: Vec<f64>,
    n_values: u64,
}

impl ChannelSums {
    /// Adds values of this shape: channels are the second axis, of three axes the last.
    fn add(&mut self, values: &[f32], dims: &[usize]) {
        let axis = if dims.len() == 3 { 2 } else { 1.min(dims.len().saturating_sub(1)) };
        let (n, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>().max(1));
        self.sums.resize(n, 0.0);
        for (at, run) in values.chunks(inner).enumerate() {
            self.sums[at % n] += run.iter().map(|value| f64::from(*value)).sum::<f64>();
        }
        self.n_values += (values.len() / n.max(1)) as u64;
    }

    fn means(&self) -> Vec<f64> {
        self.sums.iter().map(|sum| sum / self.n_values.max(1) as f64).collect()
    }
}

/// Takes a value as floats with its extents.
type FloatObserver<'a> = dyn FnMut(ValueId, &[f32], &[usize]) -> Result<()> + 'a;

/// Repeated runs of a network over the same batches.
struct Runs<'a> {
    network: GraphNet,
    batches: Vec<RunBatch>,
    values: Vec<ValueId>,
    columns: BTreeMap<ValueId, ColumnScales>,
    device: &'a Device,
    n_passes: usize,
    /// Number of batches so far.
    n_done: usize,
}

impl Runs<'_> {
    fn n_images(&self) -> usize {
        self.batches.iter().map(RunBatch::n_items).sum()
    }

    /// Runs all images, and passes each value as floats with its extents. Returns the number of images.
    fn pass(&mut self, progress: ItemProgress, each: &mut FloatObserver) -> Result<usize> {
        let mut n_items = 0;
        for batch in &self.batches {
            let mut batch = batch.clone();
            if let Some(inputs) = batch.read(self.device)? {
                self.network.observe_values(&inputs, &self.values, &mut |id, value: &AnyTensor| {
                    let mut values = value.to_f32("an activation")?;
                    self.columns.get(&id).into_iter().for_each(|columns| columns.multiply(&mut values));
                    each(id, &values, &value.dims())
                })?;
                n_items += batch.n_items();
            }
            self.n_done += 1;
            progress(self.n_done, self.n_passes * self.batches.len())?;
        }
        Ok(n_items)
    }

    fn extremes(&mut self, progress: ItemProgress) -> Result<(BTreeMap<ValueId, Extremes>, usize)> {
        let names = self.network.graph().values.clone();
        let mut found: BTreeMap<ValueId, Extremes> = BTreeMap::new();
        let n_items = self.pass(progress, &mut |id, values, dims| {
            let (low, high) = simd::min_max(values);
            if !low.is_finite() || !high.is_finite() {
                let message = "an activation is not finite; repair the model or remove the item";
                return Err(Error::refused(message).at(&names[id.0]));
            }
            let new = Extremes { low, high, channels: ChannelSums::default() };
            let seen = found.entry(id).or_insert(new);
            (seen.low, seen.high) = (seen.low.min(low), seen.high.max(high));
            seen.channels.add(values, dims);
            Ok(())
        })?;
        Ok((found, n_items))
    }

    fn histograms(
        &mut self,
        extremes: &BTreeMap<ValueId, Extremes>,
        progress: ItemProgress,
    ) -> Result<BTreeMap<ValueId, ActivationHistogram>> {
        let empty = |(id, seen): (&ValueId, &Extremes)| (*id, ActivationHistogram::new(seen.low, seen.high, N_BINS));
        let mut found: BTreeMap<ValueId, ActivationHistogram> = extremes.iter().map(empty).collect();
        self.pass(progress, &mut |id, values, _| {
            if let Some(histogram) = found.get_mut(&id) {
                histogram.add(values);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn rounded(
        &mut self,
        ranges: &BTreeMap<ValueId, ValueStatistics>,
        progress: ItemProgress,
    ) -> Result<BTreeMap<ValueId, ChannelSums>> {
        let mut found: BTreeMap<ValueId, ChannelSums> = BTreeMap::new();
        let mut rounded = Vec::new();
        self.pass(progress, &mut |id, values, dims| {
            let affine = ranges[&id].affine();
            rounded.clear();
            rounded.extend(values.iter().map(|value| affine.dequantize(affine.quantize(*value, grid()))));
            found.entry(id).or_default().add(&rounded, dims);
            Ok(())
        })?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_models::{device, guarded};
    use std::path::Path;

    #[test]
    fn channels_are_the_second_axis_of_images_and_the_last_of_tokens() {
        let mut images = ChannelSums::default();
        images.add(&[1.0, 3.0, 10.0, 20.0, 5.0, 7.0, 30.0, 40.0], &[2, 2, 1, 2]);
        assert_eq!(images.means(), [4.0, 25.0]);
        let mut tokens = ChannelSums::default();
        tokens.add(&[1.0, 2.0, 3.0, 4.0], &[1, 2, 2]);
        assert_eq!(tokens.means(), [2.0, 3.0]);
        let mut rows = ChannelSums::default();
        rows.add(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        assert_eq!(rows.means(), [2.0, 3.0]);
    }

    fn digits(range: ActivationRange, n: usize) -> ValueRanges {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let checkpoint = Checkpoint::open(&fixtures.join("digits")).unwrap();
        let arch = Arch::detect(&checkpoint).unwrap();
        let spec = DataSpec { path: fixtures.join("digits-data.safetensors"), ..DataSpec::default() };
        let data = spec.open(arch.task()).unwrap();
        let device = device("cpu").unwrap();
        let samples = Samples { n, seed: 1 };
        // The images and the output of the first layer.
        let values = [0, 1].map(|id| ObservedValue::new(ValueId(id), ValueId(id)));
        let over = (&data, &spec);
        guarded(&device, || {
            value_ranges(&checkpoint, arch, &device, over, (samples, range), &values, &mut |_, _| Ok(()))
        })
        .unwrap()
    }

    #[test]
    fn ranges_of_digits_are_inside_of_those_that_were_seen() {
        let whole = digits(ActivationRange::MinMax, 40);
        assert_eq!((whole.n_items, whole.n_skipped, whole.values.len()), (40, 0, 2));
        for (_, range) in ActivationRange::NAMED {
            let found = digits(range, 40);
            for (id, seen) in &found.values {
                let [low, high] = whole.values[id].bounds;
                assert!(low <= seen.bounds[0] && seen.bounds[1] <= high && seen.bounds[0] < seen.bounds[1], "{range}");
                assert_eq!(seen.means, whole.values[id].means, "{range}");
                let step = f64::from(seen.affine().scale);
                let cut = f64::from((high - seen.bounds[1]).max(seen.bounds[0] - low));
                let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= step / 2.0 + cut;
                assert!(seen.means.iter().zip(&seen.rounded_means).all(is_near), "{range}");
            }
        }
    }
}
