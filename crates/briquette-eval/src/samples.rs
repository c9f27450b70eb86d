//! The sampled items of a data set: batches of texts of equal length without padding, of pairs, or of images.

use crate::image_items::{images_of, pixels_of};
use briquette_core::{Error, Result};
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec, ImageInput, Images, PairSource, SoundInput};
use briquette_models::graph_net::RunInputs;
use briquette_models::{Arch, Input, ModelTask};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::PathBuf;
use std::sync::Arc;

/// The maximum number of items per batch.
pub(crate) const BATCH_SIZE: usize = 8;

/// The maximum number of tokens per batch, unless a single item has more.
pub(crate) const BATCH_TOKENS: usize = 1024;

/// The items that a calibration runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples {
    /// The maximum number of items: sentences, images, pairs, or windows of a text.
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

/// Texts of equal length, pairs with sources and targets of equal lengths, or images.
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
    /// The tokens of all targets, concatenated, after their sources.
    Pairs(BatchSources, Vec<u32>),
}

/// The sources of pairs.
#[derive(Debug, Clone)]
enum BatchSources {
    /// The tokens of all texts, concatenated.
    Texts(Vec<u32>),
    /// Sounds are read when they are needed.
    Sounds(Vec<PathBuf>, SoundInput),
}

/// A pair as tokens: the length of its source orders batches.
struct TokenPair {
    place: usize,
    source: TokenSource,
    target: Vec<u32>,
}

enum TokenSource {
    Text(Vec<u32>),
    Sound(PathBuf, SoundInput),
}

impl TokenPair {
    /// Returns the tokens of source and target. Sounds have one length.
    fn lengths(&self) -> [usize; 2] {
        let n = match &self.source {
            TokenSource::Text(tokens) => tokens.len(),
            TokenSource::Sound(_, input) => input.n_frames,
        };
        [n, self.target.len()]
    }
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

    fn of_pairs(pairs: &[TokenPair]) -> Self {
        let targets = pairs.iter().flat_map(|pair| pair.target.iter().copied()).collect();
        let (mut texts, mut sounds) = (Vec::new(), None);
        for pair in pairs {
            match &pair.source {
                TokenSource::Text(tokens) => texts.extend(tokens),
                TokenSource::Sound(path, input) => sounds.get_or_insert((Vec::new(), *input)).0.push(path.clone()),
            }
        }
        let sources = match sounds {
            Some((paths, input)) => BatchSources::Sounds(paths, input),
            None => BatchSources::Texts(texts),
        };
        Self { places: pairs.iter().map(|pair| pair.place).collect(), kind: BatchKind::Pairs(sources, targets) }
    }

    /// Returns some of the items.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Self {
        let n = self.places.len().max(1);
        fn rows<T: Clone>(all: &[T], n: usize, range: &std::ops::Range<usize>) -> Vec<T> {
            let width = all.len() / n;
            all[range.start * width..range.end * width].to_vec()
        }
        let kind = match &self.kind {
            BatchKind::Texts(ids) => BatchKind::Texts(rows(ids, n, &range)),
            BatchKind::Images(source) => BatchKind::Images(source.clone()),
            BatchKind::Pairs(sources, targets) => {
                let sources = match sources {
                    BatchSources::Texts(ids) => BatchSources::Texts(rows(ids, n, &range)),
                    BatchSources::Sounds(paths, input) => BatchSources::Sounds(paths[range.clone()].to_vec(), *input),
                };
                BatchKind::Pairs(sources, rows(targets, n, &range))
            }
        };
        Self { places: self.places[range].to_vec(), kind }
    }

    /// Returns the number of items.
    pub(crate) fn n_items(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of tokens per text or target; 1 for images.
    pub(crate) fn length(&self) -> usize {
        match &self.kind {
            BatchKind::Texts(ids) | BatchKind::Pairs(_, ids) => ids.len() / self.places.len().max(1),
            BatchKind::Images(_) => 1,
        }
    }

    /// Returns the number of tokens, or of images.
    pub(crate) fn n_positions(&self) -> usize {
        self.places.len() * self.length()
    }

    /// Returns the largest number of positions that a layer computes: those of sources may be more than those of targets.
    pub(crate) fn most_positions(&self) -> usize {
        let of_sources = match &self.kind {
            BatchKind::Pairs(BatchSources::Texts(ids), _) => ids.len(),
            BatchKind::Pairs(BatchSources::Sounds(paths, input), _) => paths.len() * input.n_frames,
            _ => 0,
        };
        of_sources.max(self.n_positions())
    }

    /// Returns the tokens of texts or targets, and a padding mask that is all false: `[batch, length]`.
    ///
    /// # Errors
    /// Bug: the batch has images.
    pub(crate) fn to_tensors(&self, device: &Device) -> Result<(Tensor<2, Int>, Tensor<2, Bool>)> {
        match &self.kind {
            BatchKind::Texts(ids) | BatchKind::Pairs(_, ids) => Ok(unpadded(ids, self.places.len(), device)),
            BatchKind::Images(_) => Err(Error::bug("found images, expected texts")),
        }
    }

    /// Reads the batch, without images that do not decode. `None` if none is left. Sounds must be readable.
    ///
    /// # Errors
    /// - Input: an image does not decode, and the data is strict.
    /// - Io: a file cannot be read.
    pub(crate) fn read(&mut self, device: &Device) -> Result<Option<RunInputs>> {
        let source = match &self.kind {
            BatchKind::Images(source) => source,
            BatchKind::Pairs(BatchSources::Sounds(paths, input), _) => {
                let features = paths.iter().map(|path| input.features(path)).collect::<Result<Vec<_>>>()?.concat();
                let features = TensorData::new(features, [paths.len(), input.n_mels, input.n_frames]);
                let (targets, _) = self.to_tensors(device)?;
                return Ok(Some(RunInputs::sounds(Tensor::from_data(features, device)).with_target(targets)));
            }
            _ => return self.inputs(device).map(Some),
        };
        let ImageSource { images, input, is_strict } = source.as_ref();
        let (places, pixels) = pixels_of(images, &self.places, input, *is_strict)?;
        self.places = places;
        if pixels.is_empty() {
            return Ok(None);
        }
        Ok(Some(RunInputs::images(stacked(&pixels, images.extents(input)?, device))))
    }

    /// Returns the inputs of blocks, which take no images or sounds.
    ///
    /// # Errors
    /// Bug: never for a batch of [`run_batches`].
    pub(crate) fn inputs(&self, device: &Device) -> Result<RunInputs> {
        let (ids, padding) = match &self.kind {
            BatchKind::Images(_) | BatchKind::Pairs(BatchSources::Sounds(..), _) => return Ok(RunInputs::read()),
            BatchKind::Pairs(BatchSources::Texts(ids), _) => {
                let (ids, padding) = unpadded(ids, self.places.len(), device);
                return Ok(RunInputs::padded(ids, padding).with_target(self.to_tensors(device)?.0));
            }
            BatchKind::Texts(_) => self.to_tensors(device)?,
        };
        Ok(RunInputs::padded(ids, padding))
    }
}

/// Returns the tokens of `n` texts of one length, and a padding mask that is all false: `[n, length]`.
fn unpadded(ids: &[u32], n: usize, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    let shape = [n, ids.len() / n.max(1)];
    let none = vec![false; ids.len()];
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let ids = Tensor::from_data(TensorData::new(ids, shape), device);
    (ids, Tensor::from_data(TensorData::new(none, shape), device))
}

/// Returns the batches of items that a model runs.
///
/// The items are sentences for an encoder, windows of the text for a decoder, images for a classifier, and pairs for an
/// encoder-decoder.
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
        Input::Pair { .. } => pair_batches(arch, input, data, spec, samples)?,
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

/// Counts the tokens of all texts of some data, by id. Also returns the number of items that they make up.
///
/// # Errors
/// - Config: the data has no text, or the model takes none.
/// - Input: the model has no tokenizer, or a text cannot be encoded.
pub fn token_counts(input: &mut Input, data: &Data, spec: &DataSpec) -> Result<(Vec<u64>, usize)> {
    if let Some(max_length) = spec.max_length {
        input.set_max_length(max_length)?;
    }
    let tokenizer = input.tokenizer()?;
    let mut counts: Vec<u64> = Vec::new();
    let mut count = |tokens: &[u32]| {
        for &token in tokens {
            // The tokenizer returns ids within the model's table only.
            let id = token as usize;
            counts.resize(counts.len().max(id + 1), 0);
            counts[id] += 1;
        }
    };
    let n_items = match data {
        Data::Sentences(sentences) => {
            for text in &sentences.texts {
                count(&tokenizer.encode(text)?.0);
            }
            sentences.texts.len()
        }
        Data::Document(text) => {
            let tokens = tokenizer.encode_all(text)?.0;
            count(&tokens);
            tokens.len().div_ceil(tokenizer.max_length().max(1))
        }
        Data::Pairs(pairs) => {
            for (source, target) in pairs.sources.iter().zip(&pairs.targets) {
                if let PairSource::Text(text) = source {
                    count(&tokenizer.encode(text)?.0);
                }
                count(&tokenizer.encode(target)?.0);
            }
            pairs.sources.len()
        }
        _ => return Err(Error::config("has no text to count tokens in").at(spec.path.display())),
    };
    Ok((counts, n_items))
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

fn pair_batches(
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
    let (Data::Pairs(pairs), Input::Pair { start, sound, .. }) = (data, &*input) else {
        let message = format!("{arch} cannot run on this kind of data; use data for its task");
        return Err(Error::config(message).at(spec.path.display()));
    };
    let pair = |place: usize| {
        let source = match (&pairs.sources[place], sound) {
            (PairSource::Text(text), None) => TokenSource::Text(tokenizer.encode(text)?.0),
            (PairSource::Sound(path), Some(sound)) => TokenSource::Sound(path.clone(), *sound),
            (found, _) => return Err(other_source(arch, found).at(spec.path.display())),
        };
        Ok(TokenPair { place, source, target: start.target(tokenizer, &pairs.targets[place])? })
    };
    let mut found = samples.of(pairs.sources.len())?.into_iter().map(pair).collect::<Result<Vec<_>>>()?;
    found.sort_by_key(|pair| std::cmp::Reverse(pair.lengths()));
    let batches = found.chunk_by(|a, b| a.lengths() == b.lengths()).flat_map(|same| {
        let longest = same[0].lengths().into_iter().max().unwrap_or(1);
        same.chunks((BATCH_TOKENS / longest.max(1)).clamp(1, BATCH_SIZE)).map(RunBatch::of_pairs)
    });
    Ok(batches.collect())
}

/// The error of a source that a model does not take.
pub(crate) fn other_source(arch: Arch, found: &PairSource) -> Error {
    let (found, expected) = match found {
        PairSource::Text(_) => ("a text", "a sound (audio)"),
        PairSource::Sound(_) => ("a sound", "a text (source)"),
    };
    Error::config(format!("found {found} as the source, and {arch} takes {expected}; use data for it"))
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
