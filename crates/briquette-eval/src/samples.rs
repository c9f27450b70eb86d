//! The sampled items of a data set: batches of texts of equal length without padding, of pairs, or of images.

use crate::image_items::images_of;
pub use crate::run_batch::RunBatch;
use crate::run_batch::{ImageSource, TokenPair, TokenSource};
use briquette_core::{Error, Result};
use briquette_models::data::{Data, DataSpec, PairSource};
use briquette_models::text::Tokens;
use briquette_models::{Arch, Input, ModelTask};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};
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
    let (tokenizer, reads_pairs) = (input.tokenizer()?, input.reads_pairs());
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
            let items = sentences.items(reads_pairs);
            for item in &items {
                count(&tokenizer.encode_item(item)?.ids);
            }
            items.len()
        }
        Data::Document(text) => {
            let tokens = tokenizer.encode_all(text)?.ids;
            count(&tokens);
            tokens.len().div_ceil(tokenizer.max_length().max(1))
        }
        Data::Pairs(pairs) => {
            for (source, target) in pairs.sources.iter().zip(&pairs.targets) {
                if let PairSource::Text(text) = source {
                    count(&tokenizer.encode(text)?.ids);
                }
                count(&tokenizer.encode(target)?.ids);
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
    let mut texts: Vec<(usize, Tokens)> = match (data, arch.task()) {
        (Data::Sentences(sentences), ModelTask::Encoder) => {
            let items = sentences.items(input.reads_pairs());
            let chosen = samples.of(items.len())?.into_iter();
            chosen.map(|at| Ok((at, tokenizer.encode_item(&items[at])?))).collect::<Result<_>>()?
        }
        (Data::Document(text), ModelTask::Decoder) => {
            let tokens = tokenizer.encode_all(text)?.ids;
            let windows: Vec<&[u32]> =
                tokens.chunks(tokenizer.max_length()).filter(|window| window.len() > 1).collect();
            let chosen = samples.of(windows.len())?.into_iter();
            chosen.map(|at| (at, Tokens { ids: windows[at].to_vec(), n_first: windows[at].len() })).collect()
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
            (PairSource::Text(text), None) => TokenSource::Text(tokenizer.encode(text)?.ids),
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
    Ok(chosen.chunks(BATCH_SIZE).map(|places| RunBatch::of_images(places, &source)).collect())
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
