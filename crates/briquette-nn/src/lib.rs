//! Prunes and quantizes burn modules while they train, and runs them compressed.
//!
//! | task | items |
//! |---|---|
//! | prune or quantize a module during training | [`Compression`], [`Prune`], [`Quantize`], [`Schedule`] |
//! | write a module as an output directory | [`Export`] |
//! | load a checkpoint, plain or compressed, as floats | [`load_into`] |
//! | run on integer codes | [`layers`], [`quantize_dynamic`](quantize_dynamic()), [`load_compressed`] |
//! | record layer inputs for calibration | [`Probe`] |
//! | remove channels and heads of a module | [`unit_masks`], [`unused_units`], [`shrink`](shrink()) |
//! | train with burn's `Learner` | [`Compressing`] |
//! | train in bf16 or f16; run in bf16 or f16 | [`Compression::compute_in`], [`LossScaler`]; [`ToDType`] |
//!
//! The methods that choose masks and scales are in `briquette-methods`, the file formats in
//! `briquette-formats`. The programs in `examples/` compress a digits network in seconds.
//!
//! # Compress while training
//!
//! [`Compression`] holds rules. Each rule selects parameters of any `#[derive(Module)]` by a glob over their
//! paths, and says how to prune or quantize them. [`attach`](Compression::attach) makes masks and grids part of
//! the module: from then on it computes with pruned and quantized weights. Gradients pass as if nothing were
//! rounded, and every optimizer works. Call [`refresh`](Compression::refresh) after each step: it updates masks
//! and scales according to the [`Schedule`] of each rule.
//!
//! Options of the rules:
//!
//! - compare weights within a row or a block of columns: [`Prune::of_each_row`], [`Prune::of_each_columns`]
//! - score weights with your own function: [`Prune::score_by`]
//! - skip parameters: [`Compression::leave`]
//! - train the scales: [`Quantize::learned`]
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_formats::Checkpoint;
//! use briquette_nn::{Compression, Export, NameMap, Prune, Quantize, Schedule, load_into, sparsity};
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamConfig, GradientsParams};
//! use burn::tensor::{Device, Tensor, activation::relu};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     hidden: Linear,
//!     head: Linear,
//! }
//!
//! impl Net {
//!     fn new(device: &Device) -> Self {
//!         Self { hidden: LinearConfig::new(64, 32).init(device), head: LinearConfig::new(32, 4).init(device) }
//!     }
//!
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.head.forward(relu(self.hidden.forward(x)))
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let rules = Compression::new()
//!     .prune(Prune::new("*.weight", 0.75)?.globally().on(Schedule::cubic(0..20).every(5)))
//!     .quantize(Quantize::new("hidden.weight", "int8")?.on(Schedule::constant(0..40).every(5)));
//! let mut net = rules.attach(Net::new(&device))?;
//! let mut optimizer = AdamConfig::new().init();
//! for t in 1..=40 {
//!     let loss = net.forward(Tensor::ones([8, 64], &device)).powf_scalar(2.0).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &net);
//!     net = optimizer.step(1e-3, net, grads);
//!     net = rules.refresh(net, t)?; // after each step, counted from 1
//! }
//! assert_eq!(sparsity(&net)?["hidden.weight"].n_zeros + sparsity(&net)?["head.weight"].n_zeros, 1632);
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let out = dir.path().join("out");
//! // Write masks and integer codes, like `briquette compress`.
//! Export::to(&out).write(&net)?;
//! let again = load_into(Net::new(&Device::flex()), &Checkpoint::open(&out)?, &NameMap::torch())?;
//! assert_eq!(again.hidden.weight.val().into_data(), net.valid().hidden.weight.val().into_data());
//!
//! // Or turn it into an ordinary module with pruned, quantized floats.
//! let plain = net.materialize();
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! # Resume training
//!
//! burn's records include masks, scales and the step of the last decision. [`Compression::load`] attaches the
//! rules to a new module and loads a record of any step. It refuses a record of other rules.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::{Compression, Prune, Schedule};
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::tensor::Device;
//!
//! let device = Device::flex().autodiff();
//! let rules = Compression::new().prune(Prune::new("weight", 0.5)?.on(Schedule::linear(0..100)));
//! let trained = rules.attach_at(LinearConfig::new(8, 8).init(&device), 60)?;
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("layer.bpk");
//! trained.clone().into_record().save(&path).unwrap();
//! let loaded = rules.load(LinearConfig::new(8, 8).init(&device), &path)?;
//! assert_eq!(briquette_nn::decisions(&loaded)?, briquette_nn::decisions(&trained)?);
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! To attach masks and scales from another source, use [`Compression::of`], [`Prune::outside`] or
//! [`Quantize::on_grid`]. To keep the zeros of a sparse model, use [`Prune::zeros`].
//!
//! # Run on integer codes
//!
//! Replace burn's layers by [`layers::Linear`], [`layers::Embedding`] and [`layers::Conv2d`]. Such a module can
//! store integer codes and multiply them as integers, on the CPU and on CUDA.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::layers::LinearConfig;
//! use briquette_nn::{DynamicSpec, held, quantize_dynamic};
//! use burn::tensor::{Device, Tensor};
//!
//! let layer = LinearConfig::new(256, 64).init(&Device::flex());
//! let x = Tensor::<2>::ones([3, 256], &Device::flex());
//! let expected = layer.forward(x.clone());
//! let small = quantize_dynamic(layer, &DynamicSpec::new())?.module;
//! assert!(held(&small)["int8"].n_bytes < 256 * 64 + 64 * 16, "a quarter of the size of its floats");
//! let difference = (small.forward(x) - expected).abs().max().into_scalar::<f32>();
//! assert!(difference < 0.05);
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! # Record layer inputs
//!
//! A [`Probe`] accumulates statistics of layer inputs while a model runs: sums of squares or Gram matrices. It
//! writes them as safetensors.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::Probe;
//! use burn::tensor::{Device, Tensor};
//!
//! let probe = Probe::new();
//! probe.observe("encoder.0.query", &Tensor::<3>::ones([2, 5, 16], &Device::flex()))?;
//! assert_eq!(probe.stats()["encoder.0.query"].count, 10);
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod attached;
mod coded;
mod compress;
mod compression;
mod decide;
mod dense;
mod export;
mod form;
mod held;
pub mod layers;
mod learner;
mod live;
mod load;
mod load_compressed;
pub mod module;
mod module_source;
mod packed;
mod packed_weights;
mod pool;
mod quantize_dynamic;
mod record;
mod recurrent;
mod refresh;
mod rounded_input;
mod rules;
mod scores;
mod sparsity;
mod state;
mod targets;
mod trained_scales;
mod units;
mod weights;
mod without_grids;

pub use attached::Attached;
pub use briquette_core::Patterns;
pub use briquette_core::{InputStats, InputView};
pub use briquette_methods::prune::Schedule;
pub use briquette_methods::prune::Score;
pub use compress::{CompressionReport, ModuleTensors, ParameterReport, compress_by};
pub use compression::Compression;
pub use dense::{DenseTensor, dense_tensors};
pub use export::{Export, Exported};
pub use held::{Held, held};
pub use learner::Compressing;
pub use load::{load_into, load_some};
pub use load_compressed::{load_compressed, predicted_bytes};
pub use module::{
    Kind, Layer, Layout, LossScaler, NameMap, OwnLayer, Parameter, Probe, Quiet, Roles, ToDType, parameters,
};
pub use module::{Observed, Observing, observable, observe, observe_some};
pub use packed::{Packed, holds_codes};
pub use quantize_dynamic::{DynamicSpec, Quantized, quantize_dynamic};
pub use record::load_record;
pub use rules::{Prune, Quantize, Scope, WeightRow};
pub use safetensors;
pub use sparsity::{Sparsity, decisions, sparsity};
pub use trained_scales::{TrainedScales, round_inputs, scale_factors, train_scales};
pub use units::{shrink, tensor_infos, unit_masks, unused_units};
pub use without_grids::without_grids;
