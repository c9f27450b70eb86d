//! Statistics of all batches so far.

use crate::module::gram::{BatchGram, mirror};
use crate::module::read_f32;
use briquette_core::{Error, InputStats, Result};
use burn::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Statistics accumulated so far.
#[derive(Debug, Default)]
pub(super) struct SeenByLayer {
    pub(super) stats: BTreeMap<String, InputStats>,
    /// Last batch of each layer that owns a Gram matrix.
    pub(super) last: BTreeMap<String, Batch>,
    /// Layers whose inputs equal another layer's in every batch, and the layer that owns their Gram matrix.
    pub(super) same: BTreeMap<String, String>,
}

/// One batch of a layer's inputs.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) sums: BatchSums,
    pub(super) gram: BatchGram,
}

/// Sums of one batch. If all of them are bit-identical, the inputs are taken as identical.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct BatchSums {
    count: usize,
    groups: usize,
    sum: Vec<f32>,
    pub(super) squares: Vec<f32>,
    magnitudes: Vec<f32>,
    largest: Vec<f32>,
}

impl BatchSums {
    /// Creates sums of channel groups, to which groups are appended.
    pub(super) fn of_groups(groups: usize) -> Self {
        Self { groups, ..Self::default() }
    }

    pub(super) fn of(samples: &Tensor<2>, path: &str) -> Result<Self> {
        let magnitudes = samples.clone().abs();
        Ok(Self {
            count: samples.dims()[0],
            groups: 1,
            sum: read_f32(samples.clone().sum_dim(0), path)?,
            squares: read_f32(samples.clone().powi_scalar(2).sum_dim(0), path)?,
            magnitudes: read_f32(magnitudes.clone().sum_dim(0), path)?,
            largest: read_f32(magnitudes.max_dim(0), path)?,
        })
    }

    /// Appends the sums of further channel groups, over as many samples.
    pub(super) fn push(&mut self, other: Self) {
        self.count = other.count;
        self.sum.extend(other.sum);
        self.squares.extend(other.squares);
        self.magnitudes.extend(other.magnitudes);
        self.largest.extend(other.largest);
    }
}

impl SeenByLayer {
    /// Adds a batch to all statistics but the Gram matrix.
    pub(super) fn add(&mut self, path: &str, batch: &BatchSums) -> Result<()> {
        let n_inputs = batch.sum.len();
        let stats = self.stats.entry(path.to_string()).or_insert_with(|| InputStats::empty(n_inputs, false));
        if stats.n_inputs() != n_inputs {
            let message = format!("found {n_inputs} inputs, expected {} as in earlier batches", stats.n_inputs());
            return Err(Error::config(message).at(path));
        }
        stats.count += batch.count as u64;
        add_to(&mut stats.sum, &batch.sum);
        add_to(&mut stats.sum_squares, &batch.squares);
        stats.sum_magnitudes.resize(n_inputs, 0.0);
        add_to(&mut stats.sum_magnitudes, &batch.magnitudes);
        stats.max.iter_mut().zip(&batch.largest).for_each(|(max, value)| *max = max.max(*value));
        Ok(())
    }

    /// Returns the number of vectors that a layer had as input.
    fn count(&self, path: &str) -> u64 {
        self.stats.get(path).map_or(0, |stats| stats.count)
    }

    /// Returns the layer that just had the same inputs, if `path` shared all its earlier batches too.
    pub(super) fn owner_of_same(&self, path: &str, batch: &BatchSums) -> Option<String> {
        let now = self.count(path) + batch.count as u64;
        let is_same = |owner: &&String| self.count(owner) == now && self.last[*owner].sums == *batch;
        match self.stats.contains_key(path) {
            true => self.same.get(path).filter(is_same).cloned(),
            false => self.last.keys().find(is_same).cloned(),
        }
    }

    /// Adds a batch to the layer's own Gram matrix, before the batch is counted.
    pub(super) fn add_gram(&mut self, path: &str, batch: Batch) {
        // Followers without the last batch get their own matrix, and so does this layer if it shared another's.
        let before = self.count(path);
        let behind = |(follower, owner): (&String, &String)| {
            (owner == path && self.count(follower) < before).then(|| follower.clone())
        };
        let parting: Vec<String> = self.same.iter().filter_map(behind).chain([path.to_string()]).collect();
        parting.into_iter().for_each(|follower| self.part(&follower));
        let n = batch.sums.sum.len();
        let stats = self.stats.entry(path.to_string()).or_insert_with(|| InputStats::empty(n, false));
        let n_elements = batch.gram.n_elements();
        let gram: &mut Vec<f64> = Arc::make_mut(stats.gram.get_or_insert_with(|| Arc::new(vec![0.0; n_elements])));
        if gram.len() != n_elements {
            // The number of groups changed; `add` refuses another number of inputs.
            return;
        }
        batch.gram.add_to(gram, 1.0);
        self.last.insert(path.to_string(), batch);
    }

    /// Gives a layer its own copy of a shared Gram matrix, over the batches that both layers had.
    fn part(&mut self, path: &str) {
        let Some(owner) = self.same.remove(path) else { return };
        let Some(mut gram) = self.stats.get(&owner).and_then(|stats| stats.gram.clone()) else { return };
        if self.count(&owner) > self.count(path) {
            // The owner is at most one batch ahead; otherwise the two would have separated before.
            let gram: &mut Vec<f64> = Arc::make_mut(&mut gram);
            self.last[&owner].gram.add_to(gram, -1.0);
        }
        if let Some(stats) = self.stats.get_mut(path) {
            stats.gram = Some(gram);
        }
    }

    /// Returns the statistics with complete matrices, shared between equal layers.
    pub(super) fn finished(mut self) -> BTreeMap<String, InputStats> {
        for stats in self.stats.values_mut() {
            let n_inputs = stats.n_inputs().max(1);
            if let Some(gram) = &mut stats.gram {
                let n_cols = gram.len() / n_inputs;
                let squares = Arc::<Vec<f64>>::make_mut(gram).chunks_mut((n_cols * n_cols).max(1));
                squares.for_each(|square| mirror(square, n_cols));
            }
        }
        for (path, owner) in &self.same {
            let gram = self.stats.get(owner).and_then(|stats| stats.gram.clone());
            self.stats.entry(path.clone()).and_modify(|stats| stats.gram = gram);
        }
        self.stats
    }
}

fn add_to(sum: &mut [f64], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
}
