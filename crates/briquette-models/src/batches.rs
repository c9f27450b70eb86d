//! Batches of data, prepared by burn's data loader on other threads while the model runs.

use crate::data::{ImageInput, Images, TextItem};
use crate::text::{TextTokenizer, Tokens};
use briquette_core::{Error, ErrorKind, Result};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{Device, Tensor, TensorData};
use std::sync::Arc;

/// Batch size and number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Items per batch.
    pub batch_size: usize,
    /// Threads that prepare batches; 0 prepares them on the calling thread.
    pub workers: usize,
}

impl Default for Batching {
    fn default() -> Self {
        Self { batch_size: 32, workers: 2 }
    }
}

/// An item with its index in the data; batches may come in any order.
#[derive(Debug, Clone)]
pub struct Indexed<T> {
    /// Index in the data.
    pub index: usize,
    /// The item.
    pub item: T,
}

/// The error of an item. It is passed as an item, since the loader clones items and adds its own text to
/// errors.
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

/// An iterable of batches.
pub struct Batches<T>(Arc<dyn DataLoader<Vec<Prepared<T>>>>);

impl<T: 'static> Batches<T> {
    /// Returns all batches; a batch with a failed item is an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Vec<Indexed<T>>>> {
        self.0.iter().map(|batch| match batch {
            Ok(items) => items.into_iter().map(|item| item.map_err(Error::from)).collect(),
            Err(source) => Err(Error::bug(format!("cannot prepare a batch: {source}"))),
        })
    }
}

/// Passes items on unchanged: the thread that runs the model creates the tensors.
struct AsTheyAre;

impl<T: Send> Batcher<T, Vec<T>> for AsTheyAre {
    fn batch(&self, items: Vec<T>, _device: &Device) -> Vec<T> {
        items
    }
}

struct Texts {
    texts: Vec<TextItem>,
    /// Indices of the texts, longest first, so that batches need little padding.
    order: Vec<usize>,
    tokenizer: TextTokenizer,
}

impl Dataset<Prepared<Tokens>> for Texts {
    fn get(&self, place: usize) -> Result<Prepared<Tokens>, DatasetError> {
        let index = self.order[place];
        let item = self.tokenizer.encode_item(&self.texts[index]);
        Ok(item.map(|item| Indexed { index, item }).map_err(Failed::from))
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}

/// Batches texts as tokens, longest first.
pub fn text_batches(texts: Vec<TextItem>, tokenizer: &TextTokenizer, how: Batching) -> Batches<Tokens> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(texts[index].n_bytes()), index));
    loader(Texts { texts, order, tokenizer: tokenizer.clone() }, how)
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

/// Batches images as values. An image that cannot be decoded gives `None`, or an error if `is_strict`.
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
    // The loader allocates `batch_size` items up front, so a huge number would exhaust memory.
    let batch_size = how.batch_size.clamp(1, dataset.len().max(1));
    Batches(DataLoaderBuilder::new(AsTheyAre).batch_size(batch_size).num_workers(how.workers).build(dataset))
}

/// Stacks images of equal extents into one tensor.
pub fn stacked(images: &[Vec<f32>], [channels, height, width]: [usize; 3], device: &Device) -> Tensor<4> {
    let shape = [images.len(), channels, height, width];
    Tensor::from_data(TensorData::new(images.concat(), shape), device)
}
