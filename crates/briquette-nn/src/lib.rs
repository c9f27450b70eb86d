//! Prunes and quantizes burn modules while they train, and runs them compressed.
//!
//! [`Compression`] attaches masks and grids to any `#[derive(Module)]` by glob over parameter paths, and decides them
//! anew on a schedule. [`load_into`] fills a module from a checkpoint that [`briquette_formats::Checkpoint`] can open,
//! plain or compressed; [`Export`] writes one back, tied weights once, with the small files of the model it came from. The
//! [`layers`] are burn's, and run on codes where
//! [`load_compressed`] or [`quantize_dynamic`](quantize_dynamic()) has put them. Non-goals: the choosing itself (`briquette-methods`,
//! `briquette-methods`) and file formats.
//!
//! # From a training loop to a small directory
//!
//! Rules say what is asked of which parameters. Attached, they are part of the module: its weights are pruned and rounded
//! wherever they are used, gradients reach what is kept as if nothing were rounded, and any optimizer works on it. Calling
//! [`refresh`](Compression::refresh) after each step moves masks and scales along, as their [`Schedule`]s say. Who compares whose
//! weights, what they are scored by, and which parameters are left alone is up to the rule: [`Prune::of_each_row`],
//! [`Prune::of_each_columns`], [`Prune::score_by`], [`Compression::leave`]; scales can be trained too: [`Quantize::learned`].
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
//! // What it computes with, masks and codes as such: the directory that `briquette compress` writes too.
//! Export::to(&out).write(&net)?;
//! let again = load_into(Net::new(&Device::flex()), &Checkpoint::open(&out)?, &NameMap::torch())?;
//! assert_eq!(again.hidden.weight.val().into_data(), net.valid().hidden.weight.val().into_data());
//!
//! // Or an ordinary module again, its weights pruned and rounded for good.
//! let plain = net.materialize();
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! # Stopping and going on
//!
//! Masks and scales are part of burn's records, and so is the step after which something was decided last.
//! [`Compression::load`] attaches the same rules and loads a record, of whatever step; a record of other rules is refused.
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
//! What was decided elsewhere attaches by [`Compression::of`], [`Prune::outside`] a mask and [`Quantize::on_grid`]; the zeros that a
//! model has already are held by [`Prune::zeros`].
//!
//! # Running on codes
//!
//! With [`layers::Linear`], [`layers::Embedding`] and [`layers::Conv2d`] in the place of burn's, a module holds codes and multiplies
//! them as integers, on the CPU and on CUDA.
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
//! assert!(held(&small)["int8"].n_bytes < 256 * 64 + 64 * 16, "a quarter of its floats");
//! let apart = (small.forward(x) - expected).abs().max().into_scalar::<f32>();
//! assert!(apart < 0.05);
//! # }
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! # Statistics of inputs
//!
//! A [`Probe`] is shown what goes into layers while a model runs, and writes sums of squares, or whole gram matrices, as
//! safetensors.
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
//!
//! Also here: [`Compressing`] for burn's `Learner`, [`Compression::compute_in`] and [`LossScaler`] for training in bf16 and
//! f16, [`ToDType`] for running in them. The four programs in `examples/` do all of this with digits, in seconds.

mod attached;
mod coded;
mod compress;
mod compression;
mod decide;
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
mod targets;
mod weights;

pub use attached::{Attached, without_grids};
pub use briquette_core::Patterns;
pub use briquette_core::{InputStats, InputView};
pub use briquette_methods::prune::Schedule;
pub use briquette_methods::prune::Score;
pub use compress::{CompressionReport, ModuleTensors, ParameterReport, compress_by};
pub use compression::Compression;
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
pub use sparsity::{Sparsity, decisions, sparsity};
