//! The architectures Briquette can run, with their data and metrics.
//!
//! A [`LoadedModel`] is a network for one of three tasks (classifiers: the digits network and torchvision's ResNets;
//! encoders: BERT; decoders: Llama) with its weights and what it needs to read its inputs. [`evaluate()`] runs one over
//! text, images or arrays and compares it with labels and with the model it came from; [`metrics`] are pure functions.
//!
//! Networks are `#[derive(Module)]`, so they train, prune and quantize with `briquette-nn`; [`LoadedModel::names`] relates
//! the paths of their parameters to the names of checkpoints. Non-goals: file formats, training, and printing.
//!
//! ```
//! use briquette_models::{Request, batches::Batching, data::DataSpec, evaluate};
//! use burn::tensor::Device;
//! # let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
//!
//! let request = Request {
//!     model: fixtures.join("digits"),
//!     reference: Some(fixtures.join("digits.pt")),
//!     choice: Default::default(),
//!     arch: None,
//!     data: DataSpec { path: fixtures.join("digits-data.safetensors"), ..DataSpec::default() },
//!     batching: Batching::default(),
//!     fits: Default::default(),
//!     offload: None,
//!     device: Device::default(),
//! };
//! let found = evaluate(&request, &[], &mut |_done, _total| Ok(()))?;
//! assert!(found.metrics["accuracy"] > 0.98 && found.metrics["agreement"] == 1.0);
//! # Ok::<(), briquette_core::Error>(())
//! ```

pub mod arch;
mod architecture;
mod attention;
pub mod batches;
pub mod bert;
pub mod budget;
pub mod calibrate;
mod config;
pub mod data;
pub mod device;
pub mod digits_cnn;
pub mod evaluate;
mod faults;
mod fresh;
pub mod input;
mod lanes;
pub mod layers;
pub mod llama;
pub mod loaded;
mod low_rank;
pub mod memory;
pub mod metrics;
pub mod outputs;
pub mod resnet;
mod rope;
pub mod samples;
pub mod smaller;
mod stopwatch;
mod student_config;
pub mod task;
pub mod text;
pub mod walk;

pub use arch::{Arch, Network};
pub use architecture::Decoder;
pub use bert::{Bert, BertConfig};
pub use briquette_nn::Held;
pub use budget::Budget;
pub use calibrate::{Calibration, Gathering, calibrate};
pub use device::{cuda_devices, device, device_name, kernel_path};
pub use digits_cnn::{DigitsCnn, DigitsCnnConfig};
pub use evaluate::{Evaluation, Fits, Latency, Request, evaluate};
pub use faults::guarded;
pub use input::{Input, Longest};
pub use llama::{Llama, LlamaConfig};
pub use loaded::LoadedModel;
pub use resnet::{ResNet, ResNetConfig};
pub use samples::Samples;
pub use smaller::{Outline, smaller};
pub use student_config::Smaller;
pub use task::ModelTask;
pub use walk::BlockWalk;
