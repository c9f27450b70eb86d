//! burn's data loaders as data to train on.

use crate::TrainingBatch;
use briquette_core::{Error, Result};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use std::sync::Arc;

/// Batches as one of burn's loaders hands them out, to train on.
pub type BatchLoader<I> = Arc<dyn DataLoader<TrainingBatch<I>>>;

/// A loader of anybody's batches as one of batches to train on: `batch` says what networks take in, and what the labels are. Order,
/// sizes and workers stay those of the loader, and its batches come on the plain device.
pub fn training_batches<B: 'static, I: 'static>(
    loader: Arc<dyn DataLoader<B>>,
    batch: impl Fn(B) -> TrainingBatch<I> + Send + Sync + 'static,
) -> BatchLoader<I> {
    Arc::new(Mapped { loader, batch: Arc::new(batch) })
}

/// The first batch of a loader, such as a sample to try student and teacher out with. A shuffled loader goes on to its next order.
///
/// # Errors
/// Input where there is none, or the data cannot be read.
pub fn first_batch<I>(loader: &BatchLoader<I>) -> Result<TrainingBatch<I>> {
    read(loader.iter().next().ok_or_else(|| Error::input("the data loader has no batch; its data is empty"))?)
}

/// A batch as the loader gave it, its error as ours.
pub(crate) fn read<I>(batch: Result<TrainingBatch<I>, DatasetError>) -> Result<TrainingBatch<I>> {
    batch.map_err(|error| Error::input(format!("the data loader failed: {error}")))
}

/// How a batch is made of another.
type MakeBatch<B, I> = dyn Fn(B) -> TrainingBatch<I> + Send + Sync;

struct Mapped<B, I> {
    loader: Arc<dyn DataLoader<B>>,
    batch: Arc<MakeBatch<B, I>>,
}

impl<B: 'static, I: 'static> Mapped<B, I> {
    fn with(&self, loader: Arc<dyn DataLoader<B>>) -> BatchLoader<I> {
        Arc::new(Self { loader, batch: self.batch.clone() })
    }
}

impl<B: 'static, I: 'static> DataLoader<TrainingBatch<I>> for Mapped<B, I> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<TrainingBatch<I>> + 'a> {
        Box::new(MappedIterator { batches: self.loader.iter(), batch: &*self.batch })
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &Device) -> BatchLoader<I> {
        self.with(self.loader.to_device(&device.clone().without_autodiff()))
    }

    fn slice(&self, start: usize, end: usize) -> BatchLoader<I> {
        self.with(self.loader.slice(start, end))
    }
}

struct MappedIterator<'a, B, I> {
    batches: Box<dyn DataLoaderIterator<B> + 'a>,
    batch: &'a MakeBatch<B, I>,
}

impl<B, I> Iterator for MappedIterator<'_, B, I> {
    type Item = Result<TrainingBatch<I>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.next().map(|batch| batch.map(self.batch))
    }
}

impl<B, I> DataLoaderIterator<TrainingBatch<I>> for MappedIterator<'_, B, I> {
    fn progress(&self) -> Progress {
        self.batches.progress()
    }
}
