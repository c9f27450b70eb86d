//! Data in batches, prepared by burn's data loader on other threads while the model runs.

use crate::data::{ImageInput, Images};
use crate::text::{TextTokenizer, Tokens};
use briquette_core::{Error, Result};
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
pub struct Placed<T> {
    /// Its place.
    pub index: usize,
    /// The item.
    pub item: T,
}

/// Several items with their places.
pub type Batch<T> = Vec<Placed<T>>;

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

impl Dataset<Placed<Tokens>> for Texts {
    fn get(&self, place: usize) -> Result<Placed<Tokens>, DatasetError> {
        let index = self.order[place];
        let item = self.tokenizer.encode(&self.texts[index]).map_err(DatasetError::new)?;
        Ok(Placed { index, item })
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}

/// Texts as batches of tokens, the longest first.
pub fn text_batches(texts: &[String], tokenizer: &TextTokenizer, how: Batching) -> Arc<dyn DataLoader<Batch<Tokens>>> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(texts[index].len()), index));
    loader(Texts { texts: texts.to_vec(), order, tokenizer: tokenizer.clone() }, how)
}

struct Pictures {
    images: Arc<Images>,
    input: ImageInput,
    is_strict: bool,
}

impl Dataset<Placed<Option<Vec<f32>>>> for Pictures {
    fn get(&self, index: usize) -> Result<Placed<Option<Vec<f32>>>, DatasetError> {
        match self.images.pixels(index, &self.input) {
            Ok(pixels) => Ok(Placed { index, item: Some(pixels) }),
            Err(error) if self.is_strict => Err(DatasetError::new(error)),
            Err(_) => Ok(Placed { index, item: None }),
        }
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
) -> Arc<dyn DataLoader<Batch<Option<Vec<f32>>>>> {
    loader(Pictures { images: images.clone(), input: input.clone(), is_strict }, how)
}

fn loader<T>(dataset: impl Dataset<Placed<T>> + 'static, how: Batching) -> Arc<dyn DataLoader<Batch<T>>>
where
    T: Clone + std::fmt::Debug + Send + Sync + 'static,
{
    DataLoaderBuilder::new(AsTheyAre).batch_size(how.batch_size.max(1)).num_workers(how.workers).build(dataset)
}

/// The error an item of a loader failed with.
pub fn loader_error(error: &DatasetError) -> Error {
    Error::input(error.to_string())
}

/// Images of equal extents as one tensor.
pub fn stacked(images: &[Vec<f32>], [channels, height, width]: [usize; 3], device: &Device) -> Tensor<4> {
    let shape = [images.len(), channels, height, width];
    Tensor::from_data(TensorData::new(images.concat(), shape), device)
}
