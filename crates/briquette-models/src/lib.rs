//! The architectures Briquette can run, with their data and metrics.

pub mod arch;
mod attention;
pub mod batches;
pub mod bert;
mod config;
pub mod data;
pub mod device;
pub mod digits_cnn;
pub mod evaluate;
pub mod layers;
pub mod llama;
pub mod llama_config;
pub mod loaded;
pub mod memory;
pub mod metrics;
pub mod naming;
pub mod outputs;
pub mod resnet;
mod rope;
pub mod text;

pub use arch::{Arch, Family};
pub use bert::{Bert, BertConfig};
pub use device::{cuda_devices, device};
pub use digits_cnn::{DigitsCnn, DigitsCnnConfig};
pub use evaluate::{Evaluation, Latency, Request, evaluate};
pub use llama::Llama;
pub use llama_config::LlamaConfig;
pub use loaded::{Input, LoadedModel, Network};
pub use naming::names_of;
pub use resnet::{ResNet, ResNetConfig};
