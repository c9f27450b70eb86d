//! Runs models over data and measures quality, speed and memory; gathers layer inputs.
//!
//! [`evaluate()`] runs a model over text, images or arrays and compares it with labels and with its reference
//! model. [`metrics`] are pure functions. [`LayerwiseRunner`] runs a model block by block, with the
//! weights of one block in memory. [`calibrate()`] gathers input statistics of layers. [`Baseline`] measures
//! the loss of a network after replacing some of its weights.
//!
//! Non-goals: architectures and file formats, changing weights, and printing.
//!
//! ```
//! use briquette_models::{batches::Batching, data::DataSpec};
//! use briquette_eval::{Request, evaluate};
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

mod baseline;
pub mod batch_budget;
pub mod calibrate;
pub mod evaluate;
pub mod generate;
mod gradients;
mod image_items;
mod images;
mod input_difference;
mod lanes;
pub mod layerwise;
pub mod likelihood;
pub mod metrics;
mod nearness;
mod next_logits;
pub mod outputs;
mod pairs;
mod prompts;
mod quality;
mod run_batch;
mod run_outputs;
pub mod samples;
mod sampling;
pub mod sensitivity;
mod state_file;
mod stopwatch;
pub mod value_ranges;

pub use baseline::{Baseline, ChangeCost, LossMeasure, ModelOnData};
pub use batch_budget::BatchBudget;
pub use calibrate::{Calibration, Gathering, calibrate};
pub use evaluate::{Evaluation, Fits, Latency, Request, evaluate};
pub use generate::{GenerateRequest, Generated, PROMPT, Sequence, generate};
pub use layerwise::LayerwiseRunner;
pub use next_logits::sample_tokens;
pub use samples::Samples;
pub use sampling::Sampling;
pub use sensitivity::{Curvatures, LossUnit, curvatures, row_curvatures};
pub use state_file::StateFile;
pub use value_ranges::{ObservedValue, ValueRanges, ValueStatistics, value_ranges};
