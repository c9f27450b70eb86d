//! ONNX: reads models, and finds the bytes of their initializers.
//!
//! A file is one protobuf message. The walker visits its fields without a schema compiler, so it never needs to know all fields:
//! a rewritten model is a copy of the file in which only bytes of initializers differ. Initializers stay in the file; a model in memory
//! is its structure, which has a limit.
//!
//! Source: `onnx.proto` of ONNX 1.23, and the protobuf encoding (protobuf.dev/programming-guides/encoding).

mod calls;
mod carried;
mod coded_weights;
mod constants;
mod copy;
mod external;
mod fields;
mod graph;
mod model;
mod network;
mod quantized;
mod skeleton;
mod tensor;
mod wire;

pub use carried::{StreamedWeight, carried_model};
pub use coded_weights::{CodeGroups, CodeOrder, CodedWeight, coded_weights};
pub use constants::Constant;
pub use copy::MAX_NETWORK_BYTES;
pub use graph::{Attribute, AttributeValue, Dim, Node, OnnxGraph, ValueInfo};
pub use model::{Model, OnnxFunction};
pub use network::{NETWORK_FILE, network_of};
pub use quantized::has_codes;
pub(crate) use skeleton::tensors_of;
pub use skeleton::{FILE_NAME, Skeleton, SkeletonFile};
pub use tensor::{Tensor, TensorData};
