//! Gathers statistics of each layer's inputs while a model runs, for methods that use more than weights.

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

/// Collects [`InputStats`] by layer. Clones share what they collect, so that a module can keep one in a field marked
/// `#[module(skip)]` and show it the inputs of its layers.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    has_gram: bool,
    seen: Arc<Mutex<SeenByLayer>>,
    /// What layers were shown and is not counted yet, of a probe that keeps it.
    kept: Option<Arc<Mutex<Vec<RecordedInputs>>>>,
    error: Arc<Mutex<Option<Error>>>,
}

/// What a layer was shown: samples `[samples, inputs]`, which are there for a gram matrix, and their sums.
#[derive(Debug)]
struct RecordedInputs {
    layer: String,
    samples: Option<Tensor<2>>,
    sums: BatchSums,
}

/// What was seen so far.
#[derive(Debug, Default)]
struct SeenByLayer {
    stats: BTreeMap<String, InputStats>,
    /// What the layers that have a gram matrix of their own saw last.
    last: BTreeMap<String, Batch>,
    /// Layers that saw what another did in every batch, and that other, which has the gram matrix of both.
    same: BTreeMap<String, String>,
}

/// One batch of a layer's inputs.
#[derive(Debug)]
struct Batch {
    sums: BatchSums,
    gram: UpperGram,
}

/// Sums of one batch. Where all of them are equal to the bit, so were the inputs.
#[derive(Debug, Clone, PartialEq)]
struct BatchSums {
    count: usize,
    sum: Vec<f32>,
    squares: Vec<f32>,
    largest: Vec<f32>,
}

/// How a convolution goes over an image: extents of height and width.
#[derive(Debug, Clone, Copy)]
pub struct PatchShape {
    /// Its extents.
    pub kernel: [usize; 2],
    /// Steps between patches.
    pub stride: [usize; 2],
    /// Zeros before and after the image, of height and of width.
    pub padding: [[usize; 2]; 2],
    /// Steps between the taps of a patch.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
}

impl Probe {
    /// A probe that counts input vectors and gathers sums, sums of squares and largest magnitudes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A probe that gathers gram matrices too: `n²` numbers for a layer of `n` inputs.
    pub fn with_gram() -> Self {
        Self { has_gram: true, ..Self::default() }
    }

    /// A probe that only keeps what it is shown, until another [takes it in](Self::take_in): several threads can run batches at once, each
    /// with its own, and what is counted does not depend on which is first.
    #[must_use]
    pub fn keeping(&self) -> Self {
        Self { has_gram: self.has_gram, kept: Some(Arc::default()), ..Self::default() }
    }

    /// Adds what a probe has kept, in the order in which it was shown, and empties it.
    ///
    /// # Errors
    /// As [`observe`](Self::observe); the first that the other came upon.
    pub fn take_in(&self, other: &Self) -> Result<()> {
        other.take_error().map_or(Ok(()), Err)?;
        let Some(kept) = &other.kept else { return Ok(()) };
        let kept = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().try_for_each(|inputs| self.count(inputs))
    }

    /// Adds a batch of inputs of the linear layer at `path`: the last axis counts inputs, the others samples.
    ///
    /// # Errors
    /// Config where the number of inputs changed or is 0, Refused where one is not finite, Io where the device fails.
    pub fn observe<const D: usize>(&self, path: &str, inputs: &Tensor<D>) -> Result<()> {
        let n_inputs = inputs.dims().last().copied().unwrap_or(0);
        if n_inputs == 0 {
            let message =
                format!("found inputs of shape {:?}, expected at least one input in the last axis", inputs.dims());
            return Err(Error::config(message).at(path));
        }
        if inputs.shape().num_elements() == 0 {
            return Ok(());
        }
        self.add(path, inputs.clone().without_autodiff().reshape([-1, n_inputs as i32]))
    }

    /// Adds a batch of inputs `[n, channels, height, width]` of a convolution: each position is one vector of
    /// `channels · kernel height · kernel width`, in the order of the filter's columns.
    ///
    /// # Errors
    /// As [`observe`](Self::observe), and Config where the convolution has groups, or its padding depends on the image's size.
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
            return Err(Error::config("same padding with strides cannot be probed").at(path));
        };
        let (stride, dilation, groups) = (conv.stride, conv.dilation, conv.groups);
        self.observe_patches(path, inputs, PatchShape { kernel, stride, padding, dilation, groups })
    }

    /// Adds a batch of inputs of a convolution of one group that goes over them in this way.
    ///
    /// # Errors
    /// As [`observe`](Self::observe), and Config where it has groups, or where no patch fits into the images.
    pub fn observe_patches(&self, path: &str, inputs: &Tensor<4>, patches: PatchShape) -> Result<()> {
        let PatchShape { kernel, stride, padding: [height, width], dilation, groups } = patches;
        if groups != 1 {
            return Err(
                Error::config("the groups of a convolution see different inputs, and cannot be probed").at(path)
            );
        }
        let [_, channels, rows, columns] = inputs.dims();
        if channels == 0 || !patches.fit([rows, columns]) {
            let message = format!("found images of shape {:?}, into which no patch of {kernel:?} fits", inputs.dims());
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
            return Err(Error::refused("an input is not finite; look at what comes before").at(path));
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

    /// Keeps the first error of a layer that has no way to return one.
    pub fn keep_error(&self, found: Result<()>) {
        if let Err(error) = found {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// The first error of the layers that show their inputs by `observe` of `briquette-nn`: an input that is not finite, a device that
    /// fails.
    pub fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The statistics gathered so far, by path.
    pub fn stats(&self) -> BTreeMap<String, InputStats> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (stats, same) = (seen.stats.clone(), seen.same.clone());
        SeenByLayer { stats, same, ..SeenByLayer::default() }.finished()
    }

    /// The statistics gathered so far, by path; from here on it gathers anew.
    pub fn take_stats(&self) -> BTreeMap<String, InputStats> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner)).finished()
    }

    /// Writes the statistics to a file: see docs/format.md. An older file is replaced in one step. Where the model is given, the file
    /// has its fingerprint, and the statistics are refused for any other model.
    ///
    /// # Errors
    /// Io.
    pub fn write(&self, path: &Path, model: Option<&Checkpoint>) -> Result<()> {
        let model = model.map(|model| input_stats::fingerprint(model)).transpose()?;
        StatisticsFile { model, layers: self.stats() }.write(path)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Input where the file does not hold statistics, Io where it cannot be read.
    pub fn read(path: &Path) -> Result<BTreeMap<String, InputStats>> {
        StatisticsFile::read(path).map(|file| file.layers)
    }
}

impl PatchShape {
    /// Whether a patch fits into an image of these extents, and there is a way from one to the next.
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
    /// Adds a batch to all but the gram matrix.
    fn add(&mut self, path: &str, batch: &BatchSums) -> Result<()> {
        let n_inputs = batch.sum.len();
        let stats = self.stats.entry(path.to_string()).or_insert_with(|| InputStats::empty(n_inputs, false));
        if stats.n_inputs() != n_inputs {
            let message = format!("found {n_inputs} inputs, expected {} as before", stats.n_inputs());
            return Err(Error::config(message).at(path));
        }
        stats.count += batch.count as u64;
        add_to(&mut stats.sum, &batch.sum);
        add_to(&mut stats.sum_squares, &batch.squares);
        stats.max.iter_mut().zip(&batch.largest).for_each(|(max, value)| *max = max.max(*value));
        Ok(())
    }

    /// Vectors that a layer saw.
    fn count(&self, path: &str) -> u64 {
        self.stats.get(path).map_or(0, |stats| stats.count)
    }

    /// The layer that has just seen these same inputs, where `path` saw what that layer did in every batch before, too.
    fn owner_of_same(&self, path: &str, batch: &BatchSums) -> Option<String> {
        let now = self.count(path) + batch.count as u64;
        let is_same = |owner: &&String| self.count(owner) == now && self.last[*owner].sums == *batch;
        match self.stats.contains_key(path) {
            true => self.same.get(path).filter(is_same).cloned(),
            false => self.last.keys().find(is_same).cloned(),
        }
    }

    /// Adds a batch to a gram matrix of the layer's own, before it is counted.
    fn add_gram(&mut self, path: &str, batch: Batch) {
        // Those that shared it so far and have not seen its last batch go on by themselves, and so does this layer where it shared another's.
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

    /// Gives a layer that shared another's gram matrix its own: that of the batches which both saw.
    fn part(&mut self, path: &str) {
        let Some(owner) = self.same.remove(path) else { return };
        let Some(mut gram) = self.stats.get(&owner).and_then(|stats| stats.gram.clone()) else { return };
        if self.count(&owner) > self.count(path) {
            // The owner has one batch more: else the two would have parted before.
            let gram: &mut Vec<f64> = Arc::make_mut(&mut gram);
            self.last[&owner].gram.add_to(gram, -1.0);
        }
        if let Some(stats) = self.stats.get_mut(path) {
            stats.gram = Some(gram);
        }
    }

    /// The statistics, with whole matrices, shared.
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

    /// Two vectors of three inputs.
    fn inputs(seed: f32) -> Tensor<2> {
        let values: Vec<f32> = (0..6).map(|i| seed + (i * i) as f32 * 0.5).collect();
        Tensor::from_data(TensorData::new(values, [2, 3]), &Device::flex())
    }

    /// Shows each layer its batches, in rounds, to one probe and to one for itself.
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
    fn layers_that_cease_to_share_have_what_each_saw() {
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
