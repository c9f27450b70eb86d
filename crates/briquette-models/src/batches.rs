//! Data in batches, prepared by burn's data loader on other threads while the model runs.

use crate::data::{ImageInput, Images};
use crate::text::{TextTokenizer, Tokens};
use briquette_core::{Error, ErrorKind, Result};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{Device, Tensor, TensorData};
use std::sync::Arc;

/// How data is cut and by how many threads it is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Items of a batch.
    pub batch_size: usize,
    /// Threads that prepare batches; 0 prepares them in between.
    pub workers: usize,
}

impl Default for Batching {
    fn default() -> Self {
        Self { batch_size: 32, workers: 2 }
    }
}

/// An item and its place in the data; batches may come in any order.
#[derive(Debug, Clone)]
pub struct Indexed<T> {
    /// Its place.
    pub index: usize,
    /// The item.
    pub item: T,
}

/// Why an item could not be prepared. It travels as an item: a loader would put words of its own before an error's, and clones
/// what it hands on, which an [`Error`] cannot do.
#[derive(Debug, Clone)]
struct Failed {
    kind: ErrorKind,
    message: String,
}

impl From<Error> for Failed {
    fn from(Error { kind, message, .. }: Error) -> Self {
        Self { kind, message }
    }
}

impl From<Failed> for Error {
    fn from(Failed { kind, message }: Failed) -> Self {
        Self { kind, message, source: None, remedy: None }
    }
}

type Prepared<T> = Result<Indexed<T>, Failed>;

/// Data in batches.
pub struct Batches<T>(Arc<dyn DataLoader<Vec<Prepared<T>>>>);

impl<T: 'static> Batches<T> {
    /// All batches, or the error that an item of one failed with.
    pub fn iter(&self) -> impl Iterator<Item = Result<Vec<Indexed<T>>>> {
        self.0.iter().map(|batch| match batch {
            Ok(items) => items.into_iter().map(|item| item.map_err(Error::from)).collect(),
            Err(source) => Err(Error::bug(format!("cannot prepare a batch: {source}"))),
        })
    }
}

/// Hands items on as they are: tensors are made by the thread that runs the model.
struct AsTheyAre;

impl<T: Send> Batcher<T, Vec<T>> for AsTheyAre {
    fn batch(&self, items: Vec<T>, _device: &Device) -> Vec<T> {
        items
    }
}

struct Texts {
    texts: Vec<String>,
    /// Places of texts, longest first, so that a batch needs little padding.
    order: Vec<usize>,
    tokenizer: TextTokenizer,
}

impl Dataset<Prepared<Tokens>> for Texts {
    fn get(&self, place: usize) -> Result<Prepared<Tokens>, DatasetError> {
        let index = self.order[place];
        let item = self.tokenizer.encode(&self.texts[index]);
        Ok(item.map(|item| Indexed { index, item }).map_err(Failed::from))
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}

/// Texts as batches of tokens, the longest first.
pub fn text_batches(texts: &[String], tokenizer: &TextTokenizer, how: Batching) -> Batches<Tokens> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(texts[index].len()), index));
    loader(Texts { texts: texts.to_vec(), order, tokenizer: tokenizer.clone() }, how)
}

struct Pictures {
    images: Arc<Images>,
    input: ImageInput,
    is_strict: bool,
}

impl Dataset<Prepared<Option<Vec<f32>>>> for Pictures {
    fn get(&self, index: usize) -> Result<Prepared<Option<Vec<f32>>>, DatasetError> {
        Ok(match self.images.pixels(index, &self.input) {
            Ok(pixels) => Ok(Indexed { index, item: Some(pixels) }),
            Err(error) if self.is_strict => Err(error.into()),
            Err(_) => Ok(Indexed { index, item: None }),
        })
    }

    fn len(&self) -> usize {
        self.images.len()
    }
}

/// Images as batches of values; `None` for one that does not decode, unless `is_strict`.
pub fn image_batches(
    images: &Arc<Images>,
    input: &ImageInput,
    is_strict: bool,
    how: Batching,
) -> Batches<Option<Vec<f32>>> {
    loader(Pictures { images: images.clone(), input: input.clone(), is_strict }, how)
}

fn loader<T>(dataset: impl Dataset<Prepared<T>> + 'static, how: Batching) -> Batches<T>
where
    T: Clone + std::fmt::Debug + Send + Sync + 'static,
{
    // A loader allocates room for `batch_size` items at once, even where there are fewer: a huge number would be out of memory.
    let batch_size = how.batch_size.clamp(1, dataset.len().max(1));
    Batches(DataLoaderBuilder::new(AsTheyAre).batch_size(batch_size).num_workers(how.workers).build(dataset))
}

/// Images of equal extents as one tensor.
pub fn stacked(images: &[Vec<f32>], [channels, height, width]: [usize; 3], device: &Device) -> Tensor<4> {
    let shape = [images.len(), channels, height, width];
    Tensor::from_data(TensorData::new(images.concat(), shape), device)
}
