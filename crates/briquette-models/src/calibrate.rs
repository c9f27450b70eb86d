//! Statistics of what goes into each layer, gathered over data.

use crate::batches::stacked;
use crate::data::{Data, DataSpec, ImageInput, Images};
use crate::outputs::{ItemProgress, device_of, nll_of};
use crate::text::{Tokens, padded};
use crate::{Input, LoadedModel, ModelTask};
use briquette_core::{Error, InputStats, Result};
use briquette_nn::{Observing, Probe, observe};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::tensor::Device;
use std::collections::BTreeMap;

/// Items that run at once. Texts of one length only share a batch, so that no padding is counted.
const BATCH_SIZE: usize = 8;

/// Vectors below which a layer's statistics say little.
const FEW: u64 = 512;

/// What a calibration takes of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples {
    /// The most items: sentences, images, or windows of a text.
    pub n: usize,
    /// Chooses them.
    pub seed: u64,
}

/// What was gathered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// Statistics of the inputs of each layer, by the name of its weight in files, without `.weight`.
    pub layers: BTreeMap<String, InputStats>,
    /// Items that ran.
    pub n_items: usize,
    /// Images that did not decode.
    pub n_skipped: usize,
    /// Layers without statistics: they do not show their inputs, or saw none.
    pub unseen: Vec<String>,
}

impl Calibration {
    /// Layers that met fewer than 512 input vectors, and how many: their statistics say little.
    pub fn few(&self) -> Vec<(&str, u64)> {
        let few = self.layers.iter().filter(|(_, stats)| stats.count < FEW);
        few.map(|(layer, stats)| (layer.as_str(), stats.count)).collect()
    }
}

/// Runs a model over some of the data and gathers statistics of the inputs of its linear layers and convolutions: sums, sums of squares and
/// largest magnitudes, and Gram matrices where `has_gram`. No activation is kept; tokens of padding are not counted.
///
/// # Errors
/// Config where the data is of another kind than the model takes, or its weights are codes; Input where an item is damaged and the data is
/// strict, or none can be used; Refused where an input is not finite.
pub fn calibrate(
    model: &LoadedModel,
    data: &Data,
    spec: &DataSpec,
    samples: Samples,
    has_gram: bool,
    progress: ItemProgress,
) -> Result<Calibration> {
    let probe = if has_gram { Probe::with_gram() } else { Probe::new() };
    let mut model = model.for_running();
    if let (Some(max_length), Input::Text { .. }) = (spec.max_length, &model.input) {
        model.set_max_length(max_length)?;
    }
    let Observing { module, seen, unseen } = observe(model.network, &probe, &model.names)?;
    let model = LoadedModel { network: module, ..model };
    let mut run = Run { model: &model, device: device_of(&model), samples, probe: &probe, n_skipped: 0 };
    let n_items = match (data, &model.input) {
        (Data::Sentences(sentences), Input::Text { .. }) if model.arch.task() == ModelTask::Encoder => {
            run.sentences(&sentences.texts, progress)?
        }
        (Data::Document(text), Input::Text { .. }) if model.arch.task() == ModelTask::Decoder => {
            run.windows(text, progress)?
        }
        (Data::Images(images), Input::Images(input)) => {
            run.images(images, &spec.image_input(input)?, spec.strict, progress)?
        }
        _ => {
            let message = format!("{} cannot be calibrated on this kind of data; give some of its own", model.arch);
            return Err(Error::config(message).at(spec.path.display()));
        }
    };
    if n_items == 0 {
        return Err(Error::input("nothing in it can be run; the model saw no input").at(spec.path.display()));
    }
    let layers = probe.stats();
    let silent = seen.into_iter().filter(|layer| !layers.contains_key(layer));
    let unseen = unseen.into_iter().chain(silent).collect();
    Ok(Calibration { n_items, n_skipped: run.n_skipped, unseen, layers })
}

struct Run<'a> {
    model: &'a LoadedModel,
    device: Device,
    samples: Samples,
    probe: &'a Probe,
    n_skipped: usize,
}

impl Run<'_> {
    fn sentences(&mut self, texts: &[String], progress: ItemProgress) -> Result<usize> {
        let tokenizer = self.model.tokenizer()?;
        let chosen = chosen(texts.len(), self.samples)?;
        let mut tokens = chosen.iter().map(|&at| tokenizer.encode(&texts[at])).collect::<Result<Vec<Tokens>>>()?;
        tokens.sort_by_key(|tokens| std::cmp::Reverse(tokens.0.len()));
        let (total, mut n_done) = (tokens.len(), 0);
        for same in tokens.chunk_by(|a, b| a.0.len() == b.0.len()) {
            for batch in same.chunks(BATCH_SIZE) {
                let (ids, padding) = padded(batch, &self.device);
                drop(self.model.network.encode(ids, padding));
                n_done += batch.len();
                self.after(n_done, total, progress)?;
            }
        }
        Ok(n_done)
    }

    fn windows(&mut self, text: &str, progress: ItemProgress) -> Result<usize> {
        let tokenizer = self.model.tokenizer()?;
        let tokens = tokenizer.encode_all(text)?.0;
        let windows: Vec<&[u32]> = tokens.chunks(tokenizer.max_length()).filter(|window| window.len() > 1).collect();
        let chosen: Vec<&[u32]> =
            chosen(windows.len(), self.samples)?.into_iter().map(|window| windows[window]).collect();
        let (total, mut n_done) = (chosen.len(), 0);
        for same in chosen.chunk_by(|a, b| a.len() == b.len()) {
            for batch in same.chunks(BATCH_SIZE) {
                nll_of(self.model, batch, &self.device)?;
                n_done += batch.len();
                self.after(n_done, total, progress)?;
            }
        }
        Ok(n_done)
    }

    fn images(
        &mut self,
        images: &Images,
        input: &ImageInput,
        is_strict: bool,
        progress: ItemProgress,
    ) -> Result<usize> {
        let (extents, chosen) = (images.extents(input)?, chosen(images.len(), self.samples)?);
        let mut n_done = 0;
        for batch in chosen.chunks(BATCH_SIZE) {
            let mut pixels = Vec::new();
            for &at in batch {
                match images.pixels(at, input) {
                    Ok(found) => pixels.push(found),
                    Err(error) if is_strict => return Err(error),
                    Err(_) => self.n_skipped += 1,
                }
            }
            if !pixels.is_empty() {
                drop(self.model.classify(stacked(&pixels, extents, &self.device)));
            }
            n_done += pixels.len();
            self.after(n_done + self.n_skipped, chosen.len(), progress)?;
        }
        Ok(n_done)
    }

    /// What a layer could not say while it ran.
    fn after(&self, n_done: usize, total: usize, progress: ItemProgress) -> Result<()> {
        self.probe.take_error().map_or(Ok(()), Err)?;
        progress(n_done, total)
    }
}

/// Some of `n` items, ascending: a function of the seed alone.
fn chosen(n: usize, samples: Samples) -> Result<Vec<usize>> {
    let order = ShuffledDataset::new(InMemDataset::new((0..n).collect::<Vec<usize>>()), samples.seed);
    let each = (0..samples.n.min(n)).map(|at| order.get(at).map_err(|error| Error::bug(format!("the order: {error}"))));
    let mut chosen = each.collect::<Result<Vec<usize>>>()?;
    chosen.sort_unstable();
    Ok(chosen)
}
