//! The sampled items of a data set, as batches of equal token length without padding.

use briquette_core::{Error, Result};
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Arch, Input, ModelTask};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

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

/// Texts of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBatch {
    /// The indices of the texts in the data.
    pub(crate) places: Vec<usize>,
    /// The tokens of all texts, concatenated.
    pub(crate) ids: Vec<u32>,
}

impl TokenBatch {
    /// Returns the number of tokens per text.
    pub(crate) fn length(&self) -> usize {
        self.ids.len() / self.places.len().max(1)
    }

    /// Returns the tokens, and a padding mask that is all false: `[batch, length]`.
    pub(crate) fn to_tensors(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
        let shape = [self.places.len(), self.length()];
        let ids: Vec<i32> = self.ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::from_data(TensorData::new(ids, shape), device);
        (ids, Tensor::from_data(TensorData::new(vec![false; self.ids.len()], shape), device))
    }
}

/// Returns batches of the texts that a model runs; `None` if the model takes images.
///
/// The texts are sentences for an encoder, and windows of the text for a decoder.
///
/// # Errors
/// - Config: the data is of another kind than the model takes.
/// - Input: the model has no tokenizer, or no item can be used.
pub fn token_batches(
    arch: Arch,
    input: &mut Input,
    data: &Data,
    spec: &DataSpec,
    samples: Samples,
) -> Result<Option<Vec<TokenBatch>>> {
    if !matches!(input, Input::Text { .. }) {
        return Ok(None);
    }
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
    if texts.is_empty() {
        return Err(Error::input("no item in it can be used; the model received no input").at(spec.path.display()));
    }
    texts.sort_by_key(|(_, tokens)| std::cmp::Reverse(tokens.len()));
    let batches = texts.chunk_by(|(_, a), (_, b)| a.len() == b.len()).flat_map(|same| {
        let at_once = (BATCH_TOKENS / same[0].1.len().max(1)).clamp(1, BATCH_SIZE);
        same.chunks(at_once).map(|batch| TokenBatch {
            places: batch.iter().map(|(place, _)| *place).collect(),
            ids: batch.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect(),
        })
    });
    Ok(Some(batches.collect()))
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
