//! Reads and writes all checkpoint formats.
//!
//! [`Checkpoint::open`] reads safetensors (one file or shards), PyTorch archives, burnpack, ONNX, compressed-tensors
//! and Briquette's own directories. Tensors are read by name, when they are needed. [`Draft`] writes a
//! directory that appears as a whole or not at all. Reading never runs code, never trusts a length, and never
//! leaves the model's directory.
//!
//! Non-goals: decisions about the numbers.

#![forbid(unsafe_code)]

pub mod activation_grids;
pub mod activations;
pub mod burnpack;
pub mod checkpoint;
pub mod choice;
pub mod companions;
mod compressed_tensors;
mod digests;
pub mod foreign;
pub mod heads;
mod hub_cache;
pub mod hub_id;
pub mod index;
pub mod input_stats;
pub mod io;
pub mod json;
pub mod loadable;
pub mod manifest;
mod manifest_file;
pub mod model_config;
mod name_prefix;
pub mod onnx;
pub mod onnx_write;
mod ours;
pub mod output_format;
pub mod plain;
#[cfg(feature = "pytorch")]
pub mod pytorch;
pub mod quantization;
pub mod quantization_config;
pub mod safetensors;
pub mod sniff;
pub mod stored;
mod value_grid;
pub mod weight_layout;
mod weights;
mod window;

pub use activation_grids::ActivationGrids;
pub use activations::ActivationRounding;
pub use checkpoint::{Checkpoint, Compressed, InputFormat};
pub use choice::Choice;
pub use io::{
    Draft, DraftFile, InputFile, LeftOut, ModelDir, TensorInfo, TensorName, TensorSource, contained, draft, file,
    limits, model_dir, names, presence, sums, tensor,
};
pub use loadable::{Limits, LoadableFamily};
pub use manifest::{Manifest, ManifestEntry, ManifestHead};
pub use ours::OutputFiles;
pub use output_format::OutputFormat;
pub use stored::{StoredDir, StoredTensor};
pub use value_grid::ValueGrid;
pub use weight_layout::WeightLayout;
