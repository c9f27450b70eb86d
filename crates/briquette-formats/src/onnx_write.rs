//! Writes ONNX models: nodes and small tensors from memory, weights streamed from their source.
//!
//! [`write_onnx`] encodes an [`OnnxModel`] as protobuf. A model below 2 GB is one file. Larger models keep their weights in a
//! second file, which ONNX calls external data. [`check_onnx`] reads a written model again: every node, the size of every
//! tensor, and the SHA-256 of its bytes.
//!
//! Field numbers are those of `onnx.proto` of ONNX 1.23.

mod check;
mod encode;
mod message;
mod model;
mod node_edit;
mod walk;
mod write;

pub use check::{CheckedOnnx, check_onnx};
pub use encode::encode_network;
pub(crate) use message::WireMessage;
pub use model::{
    CarriedModel, CarriedNode, OnnxAttribute, OnnxData, OnnxDim, OnnxModel, OnnxNode, OnnxTensor, OnnxType, OnnxValue,
};
pub use write::{DATA_FILE, LARGEST_FILE, MODEL_FILE, OnnxWritten, TensorBytes, write_onnx};

#[cfg(test)]
mod tests;
