//! Tensors with values: initializers and constants of a file.

use briquette_formats::onnx::{CodeOrder, CodedWeight, Tensor, TensorData};

/// A tensor with values.
pub(super) struct GivenTensor<'a> {
    /// The name in checkpoints. In a graph inside a node, the path of the node comes before it.
    pub(super) name: String,
    pub(super) tensor: &'a Tensor,
    /// Whether checkpoints list the tensor.
    pub(super) is_listed: bool,
    /// How the tensor's codes are decoded, if these are the floats.
    pub(super) decoded: Option<CodedWeight>,
}

impl GivenTensor<'_> {
    /// Returns the extents, of the floats if these are decoded.
    pub(super) fn extents(&self) -> &[usize] {
        self.decoded.as_ref().map_or(&self.tensor.shape, |own| &own.shape)
    }

    /// Returns whether the tensor is decoded with a scale for each element of its last axis.
    pub(super) fn has_outputs_last(&self) -> bool {
        self.decoded.as_ref().is_some_and(|own| own.order == CodeOrder::OutputsLast)
    }
}

/// Returns whether the elements of a tensor are in fields that checkpoints do not read.
pub(super) fn has_loose_elements(tensor: &Tensor) -> bool {
    matches!(tensor.data, TensorData::Spans(_) | TensorData::Varints(_))
}
