//! Whether f16 holds the weights of an ONNX file.

use briquette_core::rows::{fits, to_f32};
use briquette_core::{DType, Result, simd};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::to_onnx::{OnnxNetwork, holds_number, with_half_floats};
use briquette_writer::RunOptions;

/// The bytes that are read at once.
const PIECE: usize = 8 << 20;
/// Tensors of at most this many elements may be numbers that a network computes with, such as the bound of a range.
const MAX_NUMBERS: usize = 64;

/// Gives the network of an ONNX file f16 weights.
///
/// # Errors
/// - Config: no weight becomes f16.
/// - Io: a file cannot be read.
pub(super) fn cast(network: OnnxNetwork, checkpoint: &Checkpoint, options: &RunOptions) -> Result<OnnxNetwork> {
    with_half_floats(network, &|name| holds(checkpoint, name, options))
}

/// Returns whether f16 holds the elements of a tensor. Of few numbers, each needs seven significant bits or more.
fn holds(checkpoint: &Checkpoint, name: &str, options: &RunOptions) -> Result<bool> {
    let known = checkpoint.tensors().iter().enumerate().find(|(_, info)| info.name.as_str() == name);
    let Some((index, info)) = known else { return Ok(false) };
    let (n_bytes, width) = (info.n_bytes(), info.dtype.n_bits() / 8);
    let step = if checkpoint.reads_ranges(index) { PIECE / width * width } else { n_bytes.max(1) };
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for start in (0..n_bytes).step_by(step) {
        options.stop.check()?;
        bytes.resize(step.min(n_bytes - start), 0);
        checkpoint.read(index, start, &mut bytes)?;
        values.resize(bytes.len() / width, 0.0);
        to_f32(&bytes, info.dtype, &mut values);
        let largest = f32::from_bits(simd::max_magnitude(&values));
        let are_numbers = info.n_elements() <= MAX_NUMBERS;
        let is_held =
            if are_numbers { values.iter().all(|value| holds_number(*value)) } else { fits(largest, DType::F16) };
        if !is_held {
            return Ok(false);
        }
    }
    Ok(true)
}
