//! Names, types and shapes of a checkpoint's tensors.

use briquette_core::OutputAxis;
use briquette_formats::{TensorInfo, WeightLayout};
use std::collections::BTreeMap;

/// The tensors of a checkpoint by name. Shapes of a graph's weights come from here alone.
#[derive(Debug)]
pub struct Headers<'a> {
    tensors: &'a [TensorInfo],
    places: BTreeMap<&'a str, usize>,
    layout: OutputAxis,
}

impl<'a> Headers<'a> {
    /// Indexes tensors by name. `layout` is how matrices are stored; `[out, in]` where absent.
    pub fn new(tensors: &'a [TensorInfo], layout: Option<WeightLayout>) -> Self {
        let places = tensors.iter().enumerate().map(|(place, info)| (info.name.as_str(), place)).collect();
        let layout = if layout == Some(WeightLayout::Burn) { OutputAxis::Last } else { OutputAxis::First };
        Self { tensors, places, layout }
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&'a TensorInfo> {
        self.places.get(name).map(|&place| &self.tensors[place])
    }

    /// Whether a tensor has this name.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Whether a tensor's name has this beginning.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.places.range(prefix..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// Every name, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.tensors.iter().map(|info| info.name.as_str())
    }

    /// The axis that counts the outputs of matrices.
    pub fn layout(&self) -> OutputAxis {
        self.layout
    }

    /// The outputs and inputs of a matrix; none if there is no matrix of this name.
    pub fn matrix(&self, name: &str) -> Option<[usize; 2]> {
        match (self.get(name)?.shape.0.as_slice(), self.layout) {
            (&[n_in, n_out], OutputAxis::Last) => Some([n_out, n_in]),
            (&[n_out, n_in], _) => Some([n_out, n_in]),
            _ => None,
        }
    }

    /// The rows and columns of a lookup table, which is stored the same way in every layout; none if there is no table.
    pub fn table(&self, name: &str) -> Option<[usize; 2]> {
        <[usize; 2]>::try_from(self.get(name)?.shape.0.as_slice()).ok()
    }

    /// Counts consecutive numbers from 0 for which a name begins with `prefix` and the number.
    pub fn count(&self, prefix: &str) -> usize {
        (0..self.tensors.len()).take_while(|index| self.has_prefix(&format!("{prefix}{index}."))).count()
    }
}
