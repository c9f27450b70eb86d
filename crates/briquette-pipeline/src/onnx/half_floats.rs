//! Whether f16 holds the weights of an ONNX file.

use briquette_core::rows::{fits, to_f32};
use briquette_core::{DType, Result, simd};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::to_onnx::{OnnxNetwork, holds_number, with_half_floats};
use briquette_writer::RunOptions;
use std::collections::BTreeMap;

/// The bytes that are read at once.
const PIECE: usize = 8 << 20;

/// Gives the network of an ONNX file f16 weights.
///
/// # Errors
/// - Config: no weight becomes f16.
/// - Io: a file cannot be read.
pub(super) fn cast(network: OnnxNetwork, checkpoint: &Checkpoint, options: &RunOptions) -> Result<OnnxNetwork> {
    let tensors = checkpoint.tensors().iter().enumerate();
    let places: BTreeMap<&str, usize> = tensors.map(|(index, info)| (info.name.as_str(), index)).collect();
    with_half_floats(network, &|name| places.get(name).map_or(Ok(false), |index| holds(checkpoint, *index, options)))
}

/// Returns whether f16 holds the elements of a tensor. A single number, such as the bound of a range, needs seven significant bits or more.
fn holds(checkpoint: &Checkpoint, index: usize, options: &RunOptions) -> Result<bool> {
    let info = &checkpoint.tensors()[index];
    let (n_bytes, width) = (info.n_bytes(), info.dtype.n_bits() / 8);
    let step = if checkpoint.reads_ranges(index) { PIECE / width * width } else { n_bytes.max(1) };
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for start in (0..n_bytes).step_by(step) {
        options.stop.check()?;
        bytes.resize(step.min(n_bytes - start), 0);
        checkpoint.read(index, start, &mut bytes)?;
        values.resize(bytes.len() / width, 0.0);
        to_f32(&bytes, info.dtype, &mut values);
        let is_held = match *values {
            [number] => holds_number(number),
            _ => fits(f32::from_bits(simd::max_magnitude(&values)), DType::F16),
        };
        if !is_held {
            return Ok(false);
        }
    }
    Ok(true)
}
