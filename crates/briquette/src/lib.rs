//! Briquette compresses neural networks: it prunes, quantizes, verifies what it wrote, and measures what that saved.
//!
//! This crate re-exports the library. Five ways in, each a program that runs:
//!
//! | to | take | |
//! |---|---|---|
//! | compress a file, or a module at once | [`run()`], [`compress()`] | [a recipe](#a-recipe) |
//! | prune while a module trains | [`nn::Compression`], [`nn::Prune`] | [attach](#attach) |
//! | round weights, and run on codes | [`nn::Quantize`], [`nn::quantize_dynamic`] | [quantize](#quantize) |
//! | train a student to follow a teacher | [`distill::loss`], [`distill::Distiller`] | [distill](#distill) |
//! | write what a module has become, and load it | [`nn::Export`], [`nn::load_into`] | [export](#export) |
//!
//! # A recipe
//!
//! ```
//! use briquette::prelude::*;
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     fc: Linear,
//! }
//!
//! let net = Net { fc: LinearConfig::new(64, 32).init(&Device::flex()) };
//! let recipe = Recipe::in_memory().prune(PruneStage::layer(0.4)?).quantize(Scheme::INT8);
//! let (small, report) = briquette::compress(net, &recipe)?;
//! assert!(report.after_bytes < report.before_bytes * 2 / 5);
//! let y = small.fc.forward(Tensor::<2>::ones([1, 64], &Device::flex()));
//! assert_eq!(y.dims(), [1, 32]);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! A recipe in TOML names a model and an output, and [`run()`] makes the one of the other:
//!
//! ```
//! use briquette::prelude::*;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("recipe.toml");
//! # let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/digits");
//! # let text = format!("model.path = {model:?}\noutput.path = \"out\"\n[[stage]]\nkind = \"prune\"\nsparsity = 0.4\n");
//! # std::fs::write(&path, text).unwrap();
//! let report = briquette::run(&Recipe::from_file(&path)?, &RunOptions::default())?;
//! assert!(report.after.file_bytes < report.before.file_bytes);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! # Attach
//!
//! Masks attach to any burn module by the paths of its parameters, and hold through any optimizer.
//!
//! ```
//! use briquette::nn::{Compression, Prune, Schedule, sparsity};
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamConfig, GradientsParams};
//! use burn::tensor::{Device, Tensor};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     fc: Linear,
//! }
//!
//! let device = Device::flex().autodiff();
//! let rules = Compression::new().prune(Prune::new("fc.weight", 0.75)?.on(Schedule::cubic(0..20).every(5)));
//! let mut net = rules.attach(Net { fc: LinearConfig::new(64, 32).init(&device) })?;
//! let mut optimizer = AdamConfig::new().init();
//! for step in 1..=30 {
//!     let loss = net.fc.forward(Tensor::<2>::ones([8, 64], &device)).powf_scalar(2.0).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &net);
//!     net = optimizer.step(1e-3, net, grads);
//!     net = rules.refresh(net, step)?;
//! }
//! assert_eq!(sparsity(&net)?["fc.weight"].n_zeros, 1536);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! # Quantize
//!
//! [`nn::Quantize`] attaches a grid in the same way: the module learns around its rounding. A module of [`nn::layers`] holds codes, and
//! multiplies them as integers.
//!
//! ```
//! use briquette::nn::layers::{Linear, LinearConfig};
//! use briquette::nn::{DynamicSpec, held, quantize_dynamic};
//! use burn::module::Module;
//! use burn::tensor::{Device, Tensor};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     fc: Linear,
//! }
//!
//! let net = Net { fc: LinearConfig::new(256, 64).init(&Device::flex()) };
//! let x = Tensor::<2>::ones([3, 256], &Device::flex());
//! let expected = net.fc.forward(x.clone());
//! let quantized = quantize_dynamic(net, &DynamicSpec::new())?;
//! assert!(quantized.left.is_empty(), "burn's own layers would stay floats");
//! let small = quantized.module;
//! assert!(held(&small)["int8"].n_bytes < 256 * 64 + 64 * 16, "a quarter of its floats");
//! assert!((small.fc.forward(x) - expected).abs().max().into_scalar::<f32>() < 0.05);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! # Distill
//!
//! Losses are functions of tensors, for a loop of one's own; [`distill::Distiller`] is a loop, and [`distill::Distilling`] is for
//! burn's `SupervisedTraining`.
//!
//! ```
//! use briquette::distill::loss::logits;
//! use burn::nn::LinearConfig;
//! use burn::optim::{AdamConfig, GradientsParams};
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::flex().autodiff();
//! let teacher = LinearConfig::new(16, 4).init(&Device::flex());
//! let mut student = LinearConfig::new(16, 4).init(&device);
//! let mut optimizer = AdamConfig::new().init();
//! let mut losses = Vec::new();
//! for _ in 0..50 {
//!     let x = Tensor::<2>::eye(16, &Device::flex());
//!     let loss = logits::kl(student.forward(x.clone()), teacher.forward(x), 2.0);
//!     losses.push(loss.clone().into_scalar::<f32>());
//!     let grads = GradientsParams::from_grads(loss.backward(), &student);
//!     student = optimizer.step(3e-2, student, grads);
//! }
//! assert!(losses[49] < 0.5 * losses[0]);
//! ```
//!
//! # Export
//!
//! The directory that [`run()`] writes too: codes, masks and hashes, there whole and verified, or not at all.
//!
//! ```
//! use briquette::formats::Checkpoint;
//! use briquette::nn::{Compression, Export, NameMap, Prune, Quantize, load_into};
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     fc: Linear,
//! }
//!
//! let new = || Net { fc: LinearConfig::new(64, 32).init(&Device::flex()) };
//! let rules = Compression::new().prune(Prune::new("fc.weight", 0.5)?).quantize(Quantize::new("fc.weight", "int4-g16")?);
//! let net = rules.attach(new())?;
//! # let dir = tempfile::tempdir().unwrap();
//! # let out = dir.path().join("out");
//! Export::to(&out).write(&net)?;
//! let again = load_into(new(), &Checkpoint::open(&out)?, &NameMap::torch())?;
//! assert_eq!(again.fc.weight.val().into_data(), net.fc.weight.val().into_data());
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! # The numbers alone
//!
//! ```
//! use briquette::core::{Decision, decode, encode};
//! use briquette::prune::{Ratio, select};
//! use briquette::quant::{Scheme, fit};
//!
//! let weights: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 / 64.0 - 0.5).collect();
//! let mask = select::smallest(&weights, 4, 16, Ratio::new(0.4).unwrap().of(64));
//! let quant = fit(&weights, 16, Some(&mask), &Scheme::INT8.weights);
//! let encoded = encode(&weights, 4, 16, &Decision { mask: Some(mask), quant: Some(quant) });
//! let restored = decode(&encoded);
//! assert_eq!(restored.iter().filter(|&&value| value == 0.0).count(), 26);
//! ```
//!
//! # Features
//!
//! | feature | default | what comes with it | crates beside burn's |
//! |---|---|---|---|
//! | none | | recipes, plans, runs, reports, verification; safetensors, burnpack, compressed-tensors | 161 in all |
//! | `nn` | yes | burn modules: [`compress()`], [`nn`] | 38 |
//! | `distill` | yes | losses and training loops: [`distill`] | 39 |
//! | `flex` | yes | the CPU | |
//! | `pytorch` | | PyTorch's files: `.pt`, `.pth`, `.bin`, TorchScript | 48 |
//! | `model` | | `models`: BERT, Llama, ResNet; text, images, arrays; evaluate and distill stages of recipes | 91 |
//! | `tui` | | trainings on the whole terminal, by burn's screen | 64 |
//! | `cuda` | | NVIDIA GPUs, with all of `model` | |
//!
//! A figure is that of a program with this feature beside the default ones, and with burn's `std`, `autodiff`, `optim`, `train` and
//! `flex`, which alone are 200 crates.
//!
//! The command `briquette` is a package of its own, `briquette-cli`, with all of these but `cuda`.

pub use briquette_core as core;
#[cfg(feature = "distill")]
pub use briquette_distill as distill;
#[cfg(feature = "model")]
pub use briquette_eval as eval;
pub use briquette_formats as formats;
pub use briquette_methods::{prune, quant, reconstruct};
#[cfg(feature = "model")]
pub use briquette_models as models;
#[cfg(feature = "nn")]
pub use briquette_nn as nn;
pub use briquette_pipeline as pipeline;
pub use briquette_recipe as recipe;
pub use briquette_recipe::plan;
pub use briquette_report as report;
pub use briquette_writer as writer;

pub use briquette_core::{Error, ErrorKind, Result};
#[cfg(feature = "nn")]
pub use briquette_pipeline::in_memory::{AboutModule, compress, compress_as};
pub use briquette_pipeline::{Plan, Recipe, Report, RunOptions, run};

/// What most programs need.
pub mod prelude {
    pub use crate::core::{Decision, Encoded, Mask, QuantParams, decode, encode, fake_quantize};
    pub use crate::{Error, ErrorKind, Plan, Recipe, Report, RunOptions, run};
    pub use briquette_formats::{Checkpoint, TensorSource};
    pub use briquette_methods::prune::Ratio;
    pub use briquette_methods::quant::Scheme;
    pub use briquette_recipe::{PruneStage, QuantizeStage};
}
