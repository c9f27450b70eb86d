//! What distillation asks of networks, teachers and data: what a user implements.

use crate::{Layered, Outputs, Wanted};
use briquette_core::Result;
use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, Int, Tensor};

/// A network that shows what losses look at: any module can be a student or a teacher. [`Foreign`](crate::Foreign) makes one of a
/// module and a closure, where no trait is to be implemented.
pub trait Traced: Module + ModuleDisplay {
    /// What it takes in: tensors of a batch, on the plain device.
    type Input: Clone;

    /// Runs it. What is not `wanted` may stay empty.
    fn outputs(&self, input: &Self::Input, wanted: Wanted) -> Outputs;

    /// The same as layers, where it is made of some: see [`Settings::by_layer`](crate::Settings::by_layer).
    fn layered(&self) -> Option<&dyn Layered<Input = Self::Input>> {
        None
    }
}

/// Some items of the data.
#[derive(Debug, Clone)]
pub struct TrainingBatch<I> {
    /// Their places in the data; empty where nobody counts them, as in batches of burn's loaders.
    pub rows: Vec<usize>,
    /// What networks take in.
    pub input: I,
    /// Their classes, `[n]`, where they are known.
    pub labels: Option<Tensor<1, Int>>,
}

impl<I> TrainingBatch<I> {
    /// What networks take in, without places or labels.
    pub fn new(input: I) -> Self {
        Self { rows: Vec::new(), input, labels: None }
    }

    /// With classes, `[n]`.
    #[must_use]
    pub fn with_labels(self, labels: Tensor<1, Int>) -> Self {
        Self { labels: Some(labels), ..self }
    }
}

/// Data to train on.
pub trait TrainingData {
    /// What networks take in.
    type Input;

    /// Items in all.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items at these places, as tensors on `device`.
    ///
    /// # Errors
    /// Input where an item is damaged; Io.
    fn batch(&self, rows: &[usize], device: &Device) -> Result<TrainingBatch<Self::Input>>;

    /// What an item costs beside others, such as its length: batches are made of items that cost much the same.
    fn cost(&self, _row: usize) -> usize {
        0
    }

    /// Some of the items that take the most memory, for finding out how many fit.
    fn largest(&self, n: usize) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.len()).collect();
        rows.sort_by_key(|&row| std::cmp::Reverse(self.cost(row)));
        rows.truncate(n);
        rows
    }
}

/// What a student follows.
pub trait Teacher<I> {
    /// Its outputs for a batch, without any graph.
    ///
    /// # Errors
    /// Those of reading what it remembers; a network has none.
    fn outputs(&self, batch: &TrainingBatch<I>, wanted: Wanted) -> Result<Outputs>;
}

/// A teacher of the inputs of a network.
pub type DynTeacher<'a, N> = &'a dyn Teacher<<N as Traced>::Input>;

/// Data of the inputs of a network.
pub type DynTrainingData<'a, N> = &'a dyn TrainingData<Input = <N as Traced>::Input>;

/// A network that no longer learns: off the autodiff device, with dropout and running statistics switched off.
#[derive(Debug, Clone)]
pub struct Frozen<N>(N);

impl<N: Traced> Frozen<N> {
    /// Freezes a network as it is now.
    pub fn new(network: &N) -> Self {
        Self(network.valid())
    }

    /// Where it runs.
    pub fn device(&self) -> Device {
        self.0.devices().into_iter().next().unwrap_or_default()
    }

    /// A copy on another device.
    #[must_use]
    pub fn to(&self, device: &Device) -> Self {
        Self(self.0.clone().to_device(device))
    }
}

impl<N: Traced> Teacher<N::Input> for Frozen<N> {
    fn outputs(&self, batch: &TrainingBatch<N::Input>, wanted: Wanted) -> Result<Outputs> {
        Ok(self.0.outputs(&batch.input, wanted))
    }
}
