//! Accumulates input statistics of layers while a model runs, for calibration.

mod patches;
mod seen;

pub use patches::{GROUP_PATCHES, PatchShape};

use crate::module::gram::{BatchGram, UpperGram};
use briquette_core::{Error, InputStats, Result};
use briquette_formats::Checkpoint;
use briquette_formats::input_stats::{self, StatisticsFile};
use burn::tensor::{FloatDType, Tensor};
use seen::{Batch, BatchSums, SeenByLayer};
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

/// Recorded inputs of a layer.
#[derive(Debug)]
struct RecordedInputs {
    layer: String,
    gram: RecordedGram,
    sums: BatchSums,
}

/// The source of the Gram matrix of recorded inputs.
#[expect(clippy::large_enum_variant, reason = "a few for each batch")]
#[derive(Debug)]
enum RecordedGram {
    /// No matrix is requested.
    None,
    /// The matrix is computed from `[samples, inputs]`, unless another layer has the same inputs.
    Samples(Tensor<2>),
    /// Matrices of channel groups, which are far smaller than the samples.
    Groups(Vec<f32>),
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

    fn add(&self, path: &str, samples: Tensor<2>) -> Result<()> {
        let samples = samples.cast(FloatDType::F32);
        let sums = BatchSums::of(&samples, path)?;
        let gram = if self.has_gram { RecordedGram::Samples(samples) } else { RecordedGram::None };
        self.record(RecordedInputs { layer: path.to_string(), gram, sums })
    }

    /// Keeps inputs until another probe takes them in, or counts them.
    fn record(&self, inputs: RecordedInputs) -> Result<()> {
        if inputs.sums.squares.iter().any(|square| !square.is_finite()) {
            return Err(Error::refused("an input is not finite; check the layers before it").at(inputs.layer));
        }
        match &self.kept {
            Some(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(inputs),
            None => self.count(inputs)?,
        }
        Ok(())
    }

    fn count(&self, RecordedInputs { layer, gram, sums }: RecordedInputs) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match gram {
            RecordedGram::Samples(samples) if self.has_gram => match seen.owner_of_same(&layer, &sums) {
                Some(owner) => _ = seen.same.insert(layer.clone(), owner),
                None => {
                    let gram = BatchGram::Upper(UpperGram::of(&samples, &layer)?);
                    seen.add_gram(&layer, Batch { sums: sums.clone(), gram });
                }
            },
            RecordedGram::Groups(gram) if self.has_gram => {
                seen.add_gram(&layer, Batch { sums: sums.clone(), gram: BatchGram::Groups(gram) });
            }
            _ => {}
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
        StatisticsFile { model, layers: self.stats(), ..Default::default() }.write(path)
    }

    /// Reads a file that [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// Input: the file has no statistics. Io: it cannot be read.
    pub fn read(path: &Path) -> Result<BTreeMap<String, InputStats>> {
        StatisticsFile::read(path).map(|file| file.layers)
    }
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
