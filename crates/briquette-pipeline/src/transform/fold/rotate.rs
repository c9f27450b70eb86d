//! Rotates the residual stream and the values of attention.
//!
//! With an orthogonal `Q`, a layer that reads a norm with weight g becomes `W diag(g) Q`, a layer that writes into the stream
//! becomes `Qᵀ W`, and the table of embeddings `E Q`. The norm's weight becomes 1. Source: QuaRot (Ashkboos et al. 2024).

use super::edits::Edits;
use briquette_core::Result;
use briquette_graph::absorb::RotationPlaces;
use briquette_methods::rotation::ChannelRotation;
use briquette_writer::context::Workers;
use std::sync::Arc;

/// Rotates the network.
///
/// # Errors
/// - Refused: the weight of a norm is not finite.
/// - Io and Interrupted.
pub(super) fn fold(edits: &mut Edits, places: &RotationPlaces, seed: u64, workers: &Workers) -> Result<()> {
    for norm in &places.norms {
        workers.check_stop()?;
        let weight = edits.values(norm.weight)?;
        let gains: Vec<f64> = weight.iter().map(|value| f64::from(*value) + norm.offset).collect();
        for (reader, axis) in &norm.readers {
            edits.of_weight(*reader).multiply(*axis, &gains);
        }
        edits.set(norm.weight, vec![(1.0 - norm.offset) as f32; gains.len()]);
    }
    let rotation = Arc::new(ChannelRotation::new(places.width, seed));
    for (weight, axis) in &places.stream {
        edits.rotate(*weight, *axis, vec![(0..places.width).collect()], &rotation);
    }
    for values in &places.values {
        let rotation = Arc::new(ChannelRotation::new(values.width, seed.wrapping_add(1)));
        for axis in &values.axes {
            edits.rotate(axis.weight, axis.axis, axis.groups.clone(), &rotation);
        }
    }
    Ok(())
}
