//! f16 weights for the network of an ONNX file, whose products are then computed in f16.
//!
//! As in PyTorch's autocast, matrix products and convolutions compute in f16, and so do simple operators whose inputs are results
//! of these. Softmax, norms, reductions, inputs of means and powers stay in f32, as do operators that no rule knows. `Cast` operators are between them. Nodes that
//! stay in f32 keep the bytes of the file.

mod decide;
mod rewrite;

use super::{OnnxNetwork, WeightBytes};
use briquette_core::{Error, Result};
use briquette_formats::onnx_write::{OnnxData, OnnxType};
use decide::Decisions;
pub use decide::holds_number;

/// Returns the network with f16 weights. Inputs, outputs and nodes that stay in f32 keep their types.
///
/// `holds` returns whether f16 holds the elements of a tensor. A weight that it does not hold stays in f32, and so do its nodes.
///
/// # Errors
/// - Config: no weight becomes f16.
/// - Errors of `holds`.
pub fn with_half_floats(mut network: OnnxNetwork, holds: &dyn Fn(&str) -> Result<bool>) -> Result<OnnxNetwork> {
    let decisions = Decisions::of(&network, holds)?;
    if decisions.weights.is_empty() {
        let message = "--cast: found no weight that becomes f16, expected f32 weights within ±65504; remove the flag";
        return Err(Error::config(message));
    }
    for tensor in &mut network.model.tensors {
        if let OnnxData::Streamed(index) = tensor.data
            && decisions.weights.contains(&tensor.name)
        {
            tensor.dtype = OnnxType::F16;
            network.weights[index].bytes = WeightBytes::HalfFloats;
        }
    }
    rewrite::rewrite(&mut network.model, &decisions);
    Ok(network)
}
