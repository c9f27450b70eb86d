//! The architectures that Briquette runs, with their data and tokenizers.
//!
//! A [`LoadedModel`] is a network with weights, tokenizer and input settings, for one of three tasks:
//!
//! - classifiers of images, such as ResNets and ViT
//! - encoders of text, such as BERT
//! - decoders of text, such as Llama
//!
//! Every network is a [`GraphNet`]: one burn module that interprets the graph of a family of `briquette-graph`, so
//! `briquette-nn` can prune, quantize and export it. [`LoadedModel::names`] maps its parameter paths to the names of
//! checkpoints. Evaluation is in
//! `briquette-eval`, file formats are in `briquette-formats`.
//!
//! ```
//! use briquette_models::LoadedModel;
//! use burn::tensor::{Device, Tensor};
//! # let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
//!
//! let device = Device::default();
//! let model = LoadedModel::open(&fixtures.join("digits"), None, &device)?;
//! let scores = model.classify(Tensor::zeros([2, 1, 8, 8], &device));
//! assert_eq!(scores.dims(), [2, 10]);
//! # Ok::<(), briquette_core::Error>(())
//! ```

pub mod arch;
mod attention;
pub mod batches;
mod block_state;
mod cache;
pub mod chat;
mod config;
pub mod data;
pub mod device;
mod faults;
mod flags;
mod fresh;
pub mod graph_net;
pub mod input;
pub mod layers;
pub mod loaded;
mod low_rank;
pub mod memory;
mod rope;
pub mod smaller;
mod student_config;
mod target;
pub mod task;
pub mod text;

pub use arch::Arch;
pub use block_state::{BlockState, HostValue};
pub use briquette_cpu::float::CacheType;
pub use briquette_nn::Held;
pub use cache::KeyValues;
pub use device::{cuda_devices, device, device_name, kernel_path};
pub use faults::guarded;
pub use flags::{still, with_stored_statistics, without_dropout};
pub use graph_net::{BlockEnd, Decoder, EndValues, GraphNet, GroupValues, LinearGroup, NetworkTrace};
pub use input::Input;
pub use loaded::LoadedModel;
pub use smaller::{Outline, smaller};
pub use student_config::Smaller;
pub use target::TargetStart;
pub use task::ModelTask;
