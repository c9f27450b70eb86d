//! Places where layers can absorb a batch norm, a scale of their inputs, a rotation of the residual stream, or a shift of their outputs.
//!
//! A fold changes weights and keeps the function of the network. This module finds the places and the weights; it reads no values.

mod batch_norm;
mod mean_shift;
mod rotation;
mod scale;
mod trace;
mod uses;

pub use batch_norm::{NormPlace, batch_norms};
pub use mean_shift::{MeanShift, mean_shifts};
pub use rotation::{RotatedAxis, RotationPlaces, StreamNorm, ValueRotation, rotations};
pub use scale::{Reader, ScalePlace, scales};
pub use trace::{NormStatistics, ScaledAxis};

use std::collections::BTreeMap;

/// A layer that a fold does not change, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedLayer {
    /// The name of the layer.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// Returns one line for each reason, with the number of its layers and the name of the first.
pub fn reasons(skipped: &[SkippedLayer]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    skipped.iter().for_each(|layer| by_reason.entry(&layer.reason).or_default().push(&layer.name));
    let words = |(reason, names): (&str, Vec<&str>)| match names.as_slice() {
        [name] => format!("{name} is unchanged: {reason}"),
        names => format!("{} and {} more layers are unchanged: {reason}", names[0], names.len() - 1),
    };
    by_reason.into_iter().map(words).collect()
}
