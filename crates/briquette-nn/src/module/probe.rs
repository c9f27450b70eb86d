//! Accumulates input statistics of layers while a model runs, for calibration.

use crate::module::gram::{UpperGram, mirror};
use crate::module::read_f32;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::{self, StatisticsFile};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::module::unfold4d;
use burn::tensor::ops::UnfoldOptions;
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Accumulates [`InputStats`] by layer. Clones share them, so a module can keep one in a `#[module(skip)]` field.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    has_gram: bool,
    seen: Arc<Mutex<SeenByLayer>>,
    /// Recorded batches that are not counted yet; `Some` for a recording probe.
    kept: Option<Arc<Mutex<Vec<RecordedInputs>>>>,
    error: Arc<Mutex<Option<Error>>>,
}

/// Recorded inputs of a layer: samples `[samples, inputs]` if a Gram matrix is needed, and their sums.
#[derive(Debug)]
struct RecordedInputs {
    layer: String,
    samples: Option<Tensor<2>>,
    sums: BatchSums,
}

/// Statistics accumulated so far.
#[derive(Debug, Default)]
struct SeenByLayer {
    stats: BTreeMap<String, InputStats>,
    /// Last batch of each layer that owns a Gram matrix.
    last: BTreeMap<String, Batch>,
    /// Layers whose inputs equal another layer's in every batch, and the layer that owns their Gram matrix.
    same: BTreeMap<String, String>,
}

/// One batch of a layer's inputs.
#[derive(Debug)]
struct Batch {
    sums: BatchSums,
    gram: UpperGram,
}

/// Sums of one batch. If all of them are bit-identical, the inputs are taken as identical.
#[derive(Debug, Clone, PartialEq)]
struct BatchSums {
    count: usize,
    sum: Vec<f32>,
    squares: Vec<f32>,
    largest: Vec<f32>,
}

/// Geometry of a convolution over an image, as extents of height and width.
#[derive(Debug, Clone, Copy)]
pub struct PatchShape {
    /// Extents of the kernel.
    pub kernel: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Zeros before and after the image, for height and width.
    pub padding: [[usize; 2]; 2],
    /// Dilation.
    pub dilation: [usize; 2],
    /// Number of channel groups.
    pub groups: usize,
}

impl Probe {
    /// Creates a probe that counts input vectors and accumulates sums, sums of squares and largest magnitudes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a probe that also accumulates Gram matrices: `n²` numbers for a layer of `n` inputs.
    pub fn with_gram() -> Self {
        Self { has_gram: true, ..Self::default() }
    }

    /// Returns whether the probe accumulates Gram matrices.
    pub fn has_gram(&self) -> bool {
        self.has_gram
    }

    /// Returns a probe that records inputs until another probe [takes them in](Self::take_in). With one probe per
    /// thread, the result does not depend on the order of the threads.
    #[must_use]
    pub fn keeping(&self) -> Self {
        Self { has_gram: self.has_gram, kept: Some(Arc::default()), ..Self::default() }
    }

    /// Adds the recorded inputs of another probe in recording order, and empties it.
    ///
    /// # Errors
    /// Returns the first error of the other probe; see [`observe`](Self::observe).
    pub fn take_in(&self, other: &Self) -> Result<()> {
        other.take_error().map_or(Ok(()), Err)?;
        let Some(kept) = &other.kept else { return Ok(()) };
        let kept = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().try_for_each(|inputs| self.count(inputs))
    }

    /// Adds a batch of inputs of the linear layer at `path`: the last axis counts inputs, the others samples.
    ///
    /// # Errors
    /// - Config: the number of inputs changed or is 0
    /// - Refused: an input is not finite
    /// - Io: the device fails
    pub fn observe<const D: usize>(&self, path: &str, inputs: &Tensor<D>) -> Result<()> {
        let n_inputs = inputs.dims().last().copied().unwrap_or(0);
        if n_inputs == 0 {
            let message = format!("found inputs of shape {:?}, expected one or more in the last axis", inputs.dims());
            return Err(Error::config(message).at(path));
        }
        if inputs.shape().num_elements() == 0 {
            return Ok(());
        }
        self.add(path, inputs.clone().without_autodiff().reshape([-1, n_inputs as i32]))
    }

    /// Adds a batch of inputs `[n, channels, height, width]` of a convolution. Each position is one vector of
    /// `channels · kernel height · kernel width`, in the order of the weight's columns.
    ///
    /// # Errors
    /// Config: the convolution has groups, or has `Same` padding with strides. See [`observe`](Self::observe)
    /// for other errors.
    pub fn observe_conv(&self, path: &str, inputs: &Tensor<4>, conv: &Conv2d) -> Result<()> {
        let kernel = conv.kernel_size;
        let padding = match conv.padding {
            PaddingConfig2d::Valid => Some([[0; 2]; 2]),
            PaddingConfig2d::Same => {
                let both = [0, 1].map(|axis| conv.dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)));
                (conv.stride == [1, 1]).then(|| both.map(|n| [n / 2, n - n / 2]))
            }
            PaddingConfig2d::Explicit(top, left, bottom, right) => Some([[top, bottom], [left, right]]),
        };
        let Some(padding) = padding else {
            return Err(Error::config("cannot probe Same padding with strides").at(path));
        };
        let (stride, dilation, groups) = (conv.stride, conv.dilation, conv.groups);
        self.observe_patches(path, inputs, PatchShape { kernel, stride, padding, dilation, groups })
    }

    /// Adds a batch of inputs of a convolution with this geometry.
    ///
    /// # Errors
    /// Config: there are groups, or no patch fits the images. See [`observe`](Self::observe) for other errors.
    pub fn observe_patches(&self, path: &str, inputs: &Tensor<4>, patches: PatchShape) -> Result<()> {
        let PatchShape { kernel, stride, padding: [height, width], dilation, groups } = patches;
        if groups != 1 {
            return Err(Error::config("cannot probe a grouped convolution: its groups have different inputs").at(path));
        }
        let [_, channels, rows, columns] = inputs.dims();
        if channels == 0 || !patches.fit([rows, columns]) {
            let message = format!("found images of shape {:?}, expected at least a patch of {kernel:?}", inputs.dims());
            return Err(Error::config(message).at(path));
        }
        if inputs.dims()[0] == 0 {
            return Ok(());
        }
        let options = UnfoldOptions::new(stride, [0, 0], dilation);
        let padded = inputs.clone().without_autodiff().pad((width[0], width[1], height[0], height[1]), 0.0);
        let columns: Tensor<3> = unfold4d(padded, kernel, options);
        let n_inputs = columns.dims()[1];
        self.add(path, columns.swap_dims(1, 2).reshape([-1, n_inputs as i32]))
    }

    fn add(&self, path: &str, samples: Tensor<2>) -> Result<()> {
        let samples = samples.cast(FloatDType::F32);
        let sums = BatchSums::of(&samples, path)?;
        if sums.squares.iter().any(|square| !square.is_finite()) {
            return Err(Error::refused("an input is not finite; check the layers before it").at(path));
        }
        let inputs = RecordedInputs { layer: path.to_string(), samples: self.has_gram.then_some(samples), sums };
        match &self.kept {
            Some(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(inputs),
            None => self.count(inputs)?,
        }
        Ok(())
    }

    fn count(&self, RecordedInputs { layer, samples, sums }: RecordedInputs) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(samples) = samples.filter(|_| self.has_gram) {
            match seen.owner_of_same(&layer, &sums) {
                Some(owner) => _ = seen.same.insert(layer.clone(), owner),
                None => {
                    let gram = UpperGram::of(&samples, &layer)?;
                    seen.add_gram(&layer, Batch { sums: sums.clone(), gram });
                }
            }
        }
        seen.add(&layer, &sums)
    }

    /// Keeps the first error of a layer that cannot return errors.
    pub fn keep_error(&self, found: Result<()>) {
        if let Err(error) = found {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// Takes the first error of the observed layers, such as an input that is not finite.
    pub fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the statistics accumulated so far, by path.
    pub fn stats(&self) -> BTreeMap<String, InputStats> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (stats, same) = (seen.stats.clone(), seen.same.clone());
        SeenByLayer { stats, same, ..SeenByLayer::default() }.finished()
    }

    /// Returns the statistics accumulated so far, by path, and resets the probe.
    pub fn take_stats(&self) -> BTreeMap<String, InputStats> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner)).finished()
    }

    /// Writes the statistics to a file and replaces an older file atomically. With `model`, the file stores its
    /// fingerprint, and other models refuse the statistics.
    ///
    /// # Errors
    /// Io: the file cannot be written, or the model cannot be read.
    pub fn write(&self, path: &Path, model: Option<&Checkpoint>) -> Result<()> {
        let model = model.map(|model| input_stats::fingerprint(model)).transpose()?;
        StatisticsFile { model, layers: self.stats() }.write(path)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Input: the file has no statistics. Io: it cannot be read.
    pub fn read(path: &Path) -> Result<BTreeMap<String, InputStats>> {
        StatisticsFile::read(path).map(|file| file.layers)
    }
}

impl PatchShape {
    /// Returns whether a patch fits an image of these extents, with stride and dilation above 0.
    fn fit(&self, image: [usize; 2]) -> bool {
        (0..2).all(|axis| {
            let padded = self.padding[axis].iter().try_fold(image[axis], |sum, zeros| sum.checked_add(*zeros));
            let reach = self.kernel[axis].checked_sub(1).and_then(|last| last.checked_mul(self.dilation[axis]));
            let is_inside = padded.zip(reach).is_some_and(|(padded, reach)| reach < padded);
            is_inside && self.stride[axis] > 0 && self.dilation[axis] > 0
        })
    }
}

impl BatchSums {
    fn of(samples: &Tensor<2>, path: &str) -> Result<Self> {
        Ok(Self {
            count: samples.dims()[0],
            sum: read_f32(samples.clone().sum_dim(0), path)?,
            squares: read_f32(samples.clone().powi_scalar(2).sum_dim(0), path)?,
            largest: read_f32(samples.clone().abs().max_dim(0), path)?,
        })
    }
}

impl SeenByLayer {
    /// Adds a batch to all statistics but the Gram matrix.
    fn add(&mut self, path: &str, batch: &BatchSums) -> Result<()> {
        let n_inputs = batch.sum.len();
        let stats = self.stats.entry(path.to_string()).or_insert_with(|| InputStats::empty(n_inputs, false));
        if stats.n_inputs() != n_inputs {
            let message = format!("found {n_inputs} inputs, expected {} as in earlier batches", stats.n_inputs());
            return Err(Error::config(message).at(path));
        }
        stats.count += batch.count as u64;
        add_to(&mut stats.sum, &batch.sum);
        add_to(&mut stats.sum_squares, &batch.squares);
        stats.max.iter_mut().zip(&batch.largest).for_each(|(max, value)| *max = max.max(*value));
        Ok(())
    }

    /// Returns the number of vectors that a layer had as input.
    fn count(&self, path: &str) -> u64 {
        self.stats.get(path).map_or(0, |stats| stats.count)
    }

    /// Returns the layer that just had the same inputs, if `path` shared all its earlier batches too.
    fn owner_of_same(&self, path: &str, batch: &BatchSums) -> Option<String> {
        let now = self.count(path) + batch.count as u64;
        let is_same = |owner: &&String| self.count(owner) == now && self.last[*owner].sums == *batch;
        match self.stats.contains_key(path) {
            true => self.same.get(path).filter(is_same).cloned(),
            false => self.last.keys().find(is_same).cloned(),
        }
    }

    /// Adds a batch to the layer's own Gram matrix, before the batch is counted.
    fn add_gram(&mut self, path: &str, batch: Batch) {
        // Followers without the last batch get their own matrix, and so does this layer if it shared another's.
        let before = self.count(path);
        let behind = |(follower, owner): (&String, &String)| {
            (owner == path && self.count(follower) < before).then(|| follower.clone())
        };
        let parting: Vec<String> = self.same.iter().filter_map(behind).chain([path.to_string()]).collect();
        parting.into_iter().for_each(|follower| self.part(&follower));
        let n = batch.sums.sum.len();
        let stats = self.stats.entry(path.to_string()).or_insert_with(|| InputStats::empty(n, false));
        let gram: &mut Vec<f64> = Arc::make_mut(stats.gram.get_or_insert_with(|| Arc::new(vec![0.0; n * n])));
        batch.gram.add_to(gram, 1.0);
        self.last.insert(path.to_string(), batch);
    }

    /// Gives a layer its own copy of a shared Gram matrix, over the batches that both layers had.
    fn part(&mut self, path: &str) {
        let Some(owner) = self.same.remove(path) else { return };
        let Some(mut gram) = self.stats.get(&owner).and_then(|stats| stats.gram.clone()) else { return };
        if self.count(&owner) > self.count(path) {
            // The owner is at most one batch ahead; otherwise the two would have separated before.
            let gram: &mut Vec<f64> = Arc::make_mut(&mut gram);
            self.last[&owner].gram.add_to(gram, -1.0);
        }
        if let Some(stats) = self.stats.get_mut(path) {
            stats.gram = Some(gram);
        }
    }

    /// Returns the statistics with complete matrices, shared between equal layers.
    fn finished(mut self) -> BTreeMap<String, InputStats> {
        for stats in self.stats.values_mut() {
            let n = stats.n_inputs();
            stats.gram.iter_mut().for_each(|gram| mirror(Arc::<Vec<f64>>::make_mut(gram), n));
        }
        for (path, owner) in &self.same {
            let gram = self.stats.get(owner).and_then(|stats| stats.gram.clone());
            self.stats.entry(path.clone()).and_modify(|stats| stats.gram = gram);
        }
        self.stats
    }
}

fn add_to(sum: &mut [f64], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    fn inputs(seed: f32) -> Tensor<2> {
        let values: Vec<f32> = (0..6).map(|i| seed + (i * i) as f32 * 0.5).collect();
        Tensor::from_data(TensorData::new(values, [2, 3]), &Device::flex())
    }

    /// Passes each layer its batches, in rounds, to one shared probe and to one probe per layer.
    fn shown(rounds: &[&[(&str, f32)]]) -> (BTreeMap<String, InputStats>, BTreeMap<String, InputStats>) {
        let together = Probe::with_gram();
        let mut alone: BTreeMap<&str, Probe> = BTreeMap::new();
        for (layer, seed) in rounds.iter().flat_map(|round| round.iter()) {
            together.observe(layer, &inputs(*seed)).unwrap();
            alone.entry(layer).or_insert_with(Probe::with_gram).observe(layer, &inputs(*seed)).unwrap();
        }
        (together.take_stats(), alone.values().flat_map(|probe| probe.take_stats()).collect())
    }

    #[test]
    fn layers_with_the_same_inputs_share_one_gram_matrix() {
        let (found, alone) = shown(&[&[("q", 1.0), ("k", 1.0), ("up", 3.0)], &[("q", 2.0), ("k", 2.0), ("up", 4.0)]]);
        assert_eq!(found, alone);
        let at = |layer: &str| Arc::as_ptr(found[layer].gram.as_ref().unwrap());
        assert_eq!(at("q"), at("k"));
        assert_ne!(at("q"), at("up"));
    }

    #[test]
    fn layers_whose_inputs_diverge_get_their_own_gram_matrices() {
        let rounds: [&[&[(&str, f32)]]; 4] = [
            &[&[("a", 1.0), ("b", 1.0)], &[("a", 2.0), ("b", 5.0)], &[("a", 3.0), ("b", 3.0)]],
            &[&[("a", 1.0), ("b", 1.0)], &[("b", 5.0)], &[("a", 2.0)]],
            &[&[("a", 1.0), ("b", 1.0)], &[("a", 2.0)], &[("a", 3.0), ("b", 3.0)]],
            &[&[("a", 1.0)], &[("a", 2.0), ("b", 2.0)], &[("a", 3.0), ("b", 3.0)]],
        ];
        for rounds in rounds {
            let (found, alone) = shown(rounds);
            for (layer, stats) in alone {
                let gram = |stats: &InputStats| stats.gram.as_ref().unwrap().to_vec();
                let pairs = gram(&stats).into_iter().zip(gram(&found[&layer]));
                assert!(
                    pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9),
                    "{layer} of {rounds:?}: {:?}",
                    pairs.collect::<Vec<_>>()
                );
                assert_eq!((stats.count, &stats.sum), (found[&layer].count, &found[&layer].sum));
            }
        }
    }
}
