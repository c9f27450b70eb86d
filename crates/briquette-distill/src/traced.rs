//! The traits of networks, teachers and data that a user implements.

use crate::{Layered, Outputs, Wanted};
use briquette_core::{Error, Result};
use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, Int, Tensor};

/// A network that exposes the outputs that losses use: any module can be a student or teacher.
///
/// [`Foreign`](crate::Foreign) builds one from a module and a closure, without a trait implementation.
pub trait Traced: Module + ModuleDisplay {
    /// The input: tensors of a batch, on the plain device.
    type Input: Clone;

    /// Runs the network. Outputs that are not `wanted` may stay empty.
    fn outputs(&self, input: &Self::Input, wanted: Wanted) -> Outputs;

    /// Replaces part of an input by what this network samples, for on-policy distillation.
    ///
    /// The network is off the autodiff device, with masks and grids attached. `seed` determines the sample. See
    /// [`Settings::on_policy`](crate::Settings::on_policy).
    ///
    /// # Errors
    /// Config: the network samples nothing, as by default.
    fn sampled(&self, _input: &Self::Input, _seed: u64) -> Result<Self::Input> {
        let message = "this network samples no text; use a decoder, or remove it";
        Err(Error::config(message).at("on_policy"))
    }

    /// Returns the network as layers, if it has them: see [`Settings::by_layer`](crate::Settings::by_layer).
    fn layered(&self) -> Option<&dyn Layered<Input = Self::Input>> {
        None
    }
}

/// Some items of the data.
#[derive(Debug, Clone)]
pub struct TrainingBatch<I> {
    /// The indices of the items in the data. The list is empty if they are unknown, as in batches of burn's
    /// loaders.
    pub rows: Vec<usize>,
    /// The network input.
    pub input: I,
    /// The classes of the items, `[n]`, if known.
    pub labels: Option<Tensor<1, Int>>,
}

impl<I> TrainingBatch<I> {
    /// Creates a batch of inputs without indices or labels.
    pub fn new(input: I) -> Self {
        Self { rows: Vec::new(), input, labels: None }
    }

    /// Adds labels, `[n]`.
    #[must_use]
    pub fn with_labels(self, labels: Tensor<1, Int>) -> Self {
        Self { labels: Some(labels), ..self }
    }
}

/// Data to train on.
pub trait TrainingData {
    /// The network input.
    type Input;

    /// Returns the number of items.
    fn len(&self) -> usize;

    /// Returns whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the items with these indices, as tensors on `device`.
    ///
    /// # Errors
    /// - Input: an item is damaged.
    /// - Io: an item cannot be read.
    fn batch(&self, rows: &[usize], device: &Device) -> Result<TrainingBatch<Self::Input>>;

    /// Returns the relative cost of an item, such as its length: batches group items of similar cost.
    fn cost(&self, _row: usize) -> usize {
        0
    }

    /// Returns items with the largest memory use, to measure how many fit.
    fn largest(&self, n: usize) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.len()).collect();
        rows.sort_by_key(|&row| std::cmp::Reverse(self.cost(row)));
        rows.truncate(n);
        rows
    }
}

/// A teacher that a student follows.
pub trait Teacher<I> {
    /// Returns the teacher's outputs for a batch, without a graph.
    ///
    /// # Errors
    /// Config: the teacher is cached, and a hidden state, attention or an unknown item is requested.
    fn outputs(&self, batch: &TrainingBatch<I>, wanted: Wanted) -> Result<Outputs>;
}

/// A teacher for the inputs of a network.
pub type DynTeacher<'a, N> = &'a dyn Teacher<<N as Traced>::Input>;

/// Data for the inputs of a network.
pub type DynTrainingData<'a, N> = &'a dyn TrainingData<Input = <N as Traced>::Input>;

/// A network that is not trained: off the autodiff device, without dropout, and with fixed running statistics.
#[derive(Debug, Clone)]
pub struct Frozen<N>(N);

impl<N: Traced> Frozen<N> {
    /// Freezes a network in its current state.
    pub fn new(network: &N) -> Self {
        Self(network.valid())
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.0.devices().into_iter().next().unwrap_or_default()
    }

    /// Returns a copy on another device.
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
