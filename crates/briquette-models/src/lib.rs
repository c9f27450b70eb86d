//! The architectures that Briquette runs, with their data and tokenizers.
//!
//! A [`LoadedModel`] is a network with weights, tokenizer and input settings, for one of three tasks:
//!
//! - classifiers: the digits network, torchvision's ResNets
//! - encoders: BERT
//! - decoders: Llama
//!
//! Networks are `#[derive(Module)]`, so `briquette-nn` can prune, quantize and export them.
//! [`LoadedModel::names`] maps their parameter paths to the names of checkpoints. Evaluation is in
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
mod architecture;
mod attention;
pub mod batches;
pub mod bert;
mod block_state;
mod cache;
pub mod chat;
mod config;
pub mod data;
pub mod device;
pub mod digits_cnn;

mod faults;
mod flags;
mod fresh;
pub mod graph_net;
pub mod input;
pub mod layers;
pub mod llama;
pub mod loaded;
mod low_rank;
pub mod memory;
pub mod resnet;
mod rope;
pub mod smaller;
mod student_config;
pub mod task;
pub mod text;

pub use arch::{Arch, Network};
pub use architecture::{Blocks, Decoder};
pub use bert::{Bert, BertConfig};
pub use block_state::{BlockState, HostValue};
pub use briquette_cpu::float::CacheType;
pub use briquette_nn::Held;
pub use cache::KeyValues;
pub use device::{cuda_devices, device, device_name, kernel_path};
pub use digits_cnn::{DigitsCnn, DigitsCnnConfig};
pub use faults::guarded;
pub use flags::{still, without_dropout};
pub use graph_net::GraphNet;
pub use input::{Input, Longest};
pub use llama::{Llama, LlamaConfig};
pub use loaded::LoadedModel;
pub use resnet::{ResNet, ResNetConfig};
pub use smaller::{Outline, smaller};
pub use student_config::Smaller;
pub use task::ModelTask;
