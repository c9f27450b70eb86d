//! The sampled items of a data set: batches of texts of equal length without padding, or of images.

use crate::image_items::{images_of, pixels_of};
use briquette_core::{Error, Result};
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec, ImageInput, Images};
use briquette_models::graph_net::RunInputs;
use briquette_models::{Arch, Input, ModelTask};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::sync::Arc;

/// The maximum number of items per batch.
pub(crate) const BATCH_SIZE: usize = 8;

/// The maximum number of tokens per batch, unless a single item has more.
pub(crate) const BATCH_TOKENS: usize = 1024;

/// The items that a calibration runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples {
    /// The maximum number of items: sentences, images, or windows of a text.
    pub n: usize,
    /// The seed of the sample.
    pub seed: u64,
}

impl Samples {
    /// All items.
    pub const ALL: Self = Self { n: usize::MAX, seed: 0 };

    /// Returns a sample of `n` items, ascending; it depends only on the seed.
    pub(crate) fn of(self, n: usize) -> Result<Vec<usize>> {
        if self.n >= n {
            return Ok((0..n).collect());
        }
        let order = ShuffledDataset::new(InMemDataset::new((0..n).collect::<Vec<usize>>()), self.seed);
        let each = (0..self.n).map(|at| order.get(at).map_err(|error| Error::bug(format!("the order: {error}"))));
        let mut chosen = each.collect::<Result<Vec<usize>>>()?;
        chosen.sort_unstable();
        Ok(chosen)
    }
}

/// Texts of equal length, or images.
#[derive(Debug, Clone)]
pub struct RunBatch {
    /// The indices of the items in the data.
    pub(crate) places: Vec<usize>,
    kind: BatchKind,
}

#[derive(Debug, Clone)]
enum BatchKind {
    /// The tokens of all texts, concatenated.
    Texts(Vec<u32>),
    /// Images are read when they are needed.
    Images(Arc<ImageSource>),
}

/// Images and how a model takes them.
#[derive(Debug)]
struct ImageSource {
    images: Arc<Images>,
    input: ImageInput,
    is_strict: bool,
}

impl RunBatch {
    fn of_texts(texts: &[(usize, Vec<u32>)]) -> Self {
        let ids = texts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        Self { places: texts.iter().map(|(place, _)| *place).collect(), kind: BatchKind::Texts(ids) }
    }

    /// Returns the number of tokens per text; 1 for images.
    pub(crate) fn length(&self) -> usize {
        match &self.kind {
            BatchKind::Texts(ids) => ids.len() / self.places.len().max(1),
            BatchKind::Images(_) => 1,
        }
    }

    /// Returns the number of tokens, or of images.
    pub(crate) fn n_positions(&self) -> usize {
        self.places.len() * self.length()
    }

    /// Returns the tokens, and a padding mask that is all false: `[batch, length]`.
    ///
    /// # Errors
    /// Bug: the batch has images.
    pub(crate) fn to_tensors(&self, device: &Device) -> Result<(Tensor<2, Int>, Tensor<2, Bool>)> {
        let BatchKind::Texts(ids) = &self.kind else { return Err(Error::bug("found images, expected texts")) };
        let shape = [self.places.len(), self.length()];
        let none = vec![false; ids.len()];
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::from_data(TensorData::new(ids, shape), device);
        Ok((ids, Tensor::from_data(TensorData::new(none, shape), device)))
    }

    /// Reads the batch, without images that do not decode. `None` if none is left.
    ///
    /// # Errors
    /// - Input: an image does not decode, and the data is strict.
    /// - Io: a file cannot be read.
    pub(crate) fn read(&mut self, device: &Device) -> Result<Option<RunInputs>> {
        let BatchKind::Images(source) = &self.kind else { return self.inputs(device).map(Some) };
        let ImageSource { images, input, is_strict } = source.as_ref();
        let (places, pixels) = pixels_of(images, &self.places, input, *is_strict)?;
        self.places = places;
        if pixels.is_empty() {
            return Ok(None);
        }
        Ok(Some(RunInputs::images(stacked(&pixels, images.extents(input)?, device))))
    }

    /// Returns the inputs of blocks, which take no images.
    ///
    /// # Errors
    /// Bug: never for a batch of [`run_batches`].
    pub(crate) fn inputs(&self, device: &Device) -> Result<RunInputs> {
        if let BatchKind::Images(_) = self.kind {
            return Ok(RunInputs::read_images());
        }
        let (ids, padding) = self.to_tensors(device)?;
        Ok(RunInputs::padded(ids, padding))
    }
}

/// Returns the batches of items that a model runs.
///
/// The items are sentences for an encoder, windows of the text for a decoder, and images for a classifier.
///
/// # Errors
/// - Config: the data is of another kind than the model takes.
/// - Input: the model has no tokenizer, or no item can be used.
pub fn run_batches(
    arch: Arch,
    input: &mut Input,
    data: &Data,
    spec: &DataSpec,
    samples: Samples,
) -> Result<Vec<RunBatch>> {
    let batches = match input {
        Input::Text { .. } => text_batches(arch, input, data, spec, samples)?,
        Input::Images(_) => image_batches(arch, input, data, spec, samples)?,
    };
    match batches.is_empty() {
        true => Err(no_item(spec)),
        false => Ok(batches),
    }
}

/// The error of data without an item that runs.
pub(crate) fn no_item(spec: &DataSpec) -> Error {
    Error::input("no item in it can be used; the model received no input").at(spec.path.display())
}

fn text_batches(
    arch: Arch,
    input: &mut Input,
    data: &Data,
    spec: &DataSpec,
    samples: Samples,
) -> Result<Vec<RunBatch>> {
    if let Some(max_length) = spec.max_length {
        input.set_max_length(max_length)?;
    }
    let tokenizer = input.tokenizer()?;
    let mut texts: Vec<(usize, Vec<u32>)> = match (data, arch.task()) {
        (Data::Sentences(sentences), ModelTask::Encoder) => {
            let chosen = samples.of(sentences.texts.len())?.into_iter();
            chosen.map(|at| Ok((at, tokenizer.encode(&sentences.texts[at])?.0))).collect::<Result<_>>()?
        }
        (Data::Document(text), ModelTask::Decoder) => {
            let tokens = tokenizer.encode_all(text)?.0;
            let windows: Vec<&[u32]> =
                tokens.chunks(tokenizer.max_length()).filter(|window| window.len() > 1).collect();
            samples.of(windows.len())?.into_iter().map(|at| (at, windows[at].to_vec())).collect()
        }
        _ => {
            let message = format!("{arch} cannot run on this kind of data; use data for its task");
            return Err(Error::config(message).at(spec.path.display()));
        }
    };
    texts.sort_by_key(|(_, tokens)| std::cmp::Reverse(tokens.len()));
    let batches = texts.chunk_by(|(_, a), (_, b)| a.len() == b.len()).flat_map(|same| {
        let at_once = (BATCH_TOKENS / same[0].1.len().max(1)).clamp(1, BATCH_SIZE);
        same.chunks(at_once).map(RunBatch::of_texts)
    });
    Ok(batches.collect())
}

fn image_batches(arch: Arch, input: &Input, data: &Data, spec: &DataSpec, samples: Samples) -> Result<Vec<RunBatch>> {
    let (images, input) = images_of(arch, input, (data, spec))?;
    if input.tile.is_some() {
        let message = "a run block by block takes whole images; remove tile";
        return Err(Error::config(message).at("data.tile"));
    }
    let chosen = samples.of(images.len())?;
    let source = Arc::new(ImageSource { images: images.clone(), input, is_strict: spec.strict });
    let batch = |places: &[usize]| RunBatch { places: places.to_vec(), kind: BatchKind::Images(source.clone()) };
    Ok(chosen.chunks(BATCH_SIZE).map(batch).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_sample() {
        let of = |n, seed| Samples { n, seed }.of(100).unwrap();
        assert_eq!(of(10, 3), of(10, 3));
        assert_ne!(of(10, 3), of(10, 4));
        assert!(of(10, 3).is_sorted() && of(10, 3).len() == 10);
        assert_eq!(Samples::ALL.of(4).unwrap(), [0, 1, 2, 3]);
    }
}
