//! Adapts burn's data loaders as training data.

use crate::TrainingBatch;
use briquette_core::{Error, Result};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use std::sync::Arc;

/// One of burn's data loaders that yields training batches.
pub type BatchLoader<I> = Arc<dyn DataLoader<TrainingBatch<I>>>;

/// Adapts a loader of any batches to training batches.
///
/// `batch` returns the network input and the labels. The order, batch size and workers of the loader stay the
/// same, and its batches are on the plain device.
pub fn training_batches<B: 'static, I: 'static>(
    loader: Arc<dyn DataLoader<B>>,
    batch: impl Fn(B) -> TrainingBatch<I> + Send + Sync + 'static,
) -> BatchLoader<I> {
    Arc::new(Mapped { loader, batch: Arc::new(batch) })
}

/// Returns the first batch of a loader, for example as the sample of [`Distiller::new`](crate::Distiller::new).
///
/// A shuffled loader advances to its next order.
///
/// # Errors
/// Input: there is no batch, or the data cannot be read.
pub fn first_batch<I>(loader: &BatchLoader<I>) -> Result<TrainingBatch<I>> {
    read(loader.iter().next().ok_or_else(|| Error::input("the data loader has no batch; its data is empty"))?)
}

/// Converts the error of a loader.
pub(crate) fn read<I>(batch: Result<TrainingBatch<I>, DatasetError>) -> Result<TrainingBatch<I>> {
    batch.map_err(|error| Error::input(format!("the data loader failed: {error}")))
}

/// A conversion of batches.
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
