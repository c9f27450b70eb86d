//! Checkpoint formats, in and out. The only crate that names a file format or opens a file for writing.
//!
//! [`Checkpoint::open`] reads safetensors (one file or shards), PyTorch archives, burnpack, compressed-tensors and our
//! own directory, and hands out tensors by name, lazily. [`Draft`] writes a directory that appears whole or not at all.
//! Reading never runs code, never trusts a length, and never leaves the model's directory.
//!
//! Non-goals: deciding anything about the numbers.

#![forbid(unsafe_code)]

pub mod activations;
mod ahead;
pub mod burnpack;
mod bytes;
mod cache;
pub mod checkpoint;
pub mod choice;
pub mod companions;
mod compressed_tensors;
pub mod contained;
mod crc;
mod digests;
pub mod draft;
pub mod file;
pub mod foreign;
mod gathered;
pub mod index;
pub mod input_stats;
pub mod json;
pub mod limits;
pub mod loadable;
pub mod manifest;
pub mod model_config;
pub mod model_dir;
mod names;
mod ours;
mod pickle;
pub mod plain;
pub mod profile;
mod pytorch;
pub mod quantization;
pub mod quantization_config;
pub mod safetensors;
pub mod sniff;
pub mod stored;
pub mod sums;
pub mod tensor;
pub mod weight_layout;
mod weights;
mod zip;

pub use activations::Activations;
pub use checkpoint::{Checkpoint, Compressed, Format};
pub use choice::{Choice, LeftOut};
pub use draft::{Draft, DraftFile};
pub use file::InputFile;
pub use loadable::{Family, Limits};
pub use manifest::{Entry, Manifest};
pub use model_dir::ModelDir;
pub use profile::Profile;
pub use stored::{StoredDir, StoredTensor};
pub use tensor::{TensorInfo, TensorSource};
pub use weight_layout::WeightLayout;
