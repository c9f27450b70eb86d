//! Compresses neural networks: prunes, quantizes and distills burn modules and model files.
//! Every file that it writes is read back and verified.
//!
//! This crate re-exports the crates of the library. Choose an entry point by task; each section below is a
//! program that runs:
//!
//! | task | items | section |
//! |---|---|---|
//! | compress a model file | [`run()`], [`Recipe`] | [recipes](#recipes) |
//! | compress a burn module in memory | [`compress()`], [`Recipe::in_memory`] | [recipes](#recipes) |
//! | prune a module while it trains | [`nn::Compression`], [`nn::Prune`] | [prune while training](#prune-while-training) |
//! | train with quantized weights; run on integer codes | [`nn::Quantize`], [`nn::quantize_dynamic`] | [quantize](#quantize) |
//! | train a student to imitate a teacher | [`distill::loss`], [`distill::Distiller`] | [distill](#distill) |
//! | save a compressed module and load it | [`nn::Export`], [`nn::load_into`] | [save and load](#save-and-load) |
//!
//! # Recipes
//!
//! A recipe lists the stages of a compression. [`compress()`] applies it to a module in memory and returns the
//! module with a report:
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
//! A recipe in TOML also names a model and an output directory. [`run()`] compresses the model, writes the
//! output and verifies it:
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
//! # Prune while training
//!
//! [`nn::Compression`] attaches masks to the parameters of any burn module; globs over parameter paths choose
//! them. Pruned weights stay exactly 0 with any optimizer. Call [`refresh`](nn::Compression::refresh) after
//! each optimizer step to update the masks on schedule.
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
//! [`nn::Quantize`] attaches a quantization grid in the same way, for quantization-aware training. After
//! training, [`nn::quantize_dynamic`] replaces weights by int8 codes. The layers of [`nn::layers`] multiply
//! these codes as integers; they replace burn's layers of the same names.
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
//! assert!(held(&small)["int8"].n_bytes < 256 * 64 + 64 * 16, "a quarter of the size of its floats");
//! assert!((small.fc.forward(x) - expected).abs().max().into_scalar::<f32>() < 0.05);
//! # Ok::<(), briquette::Error>(())
//! ```
//!
//! # Distill
//!
//! The losses in [`distill::loss`] are functions of tensors for your own training loop. [`distill::Distiller`]
//! is a complete loop, and [`distill::Distilling`] plugs into burn's `SupervisedTraining`.
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
//! # Save and load
//!
//! [`nn::Export`] writes the same kind of directory as [`run()`]: integer codes, masks and hashes. The
//! directory appears only after everything in it is verified. [`nn::load_into`] decodes it into the floats of a
//! module; [`nn::load_compressed`] keeps codes in memory.
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
//! # Plain slices
//!
//! [`core`], [`prune`] and [`quant`] work on slices of floats and need no burn. [`prune::select`] chooses
//! weights to keep, [`quant::fit`] finds scales, and [`core::encode`] and [`core::decode`] convert between
//! floats and codes:
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
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`core`] | masks, grids, codes, errors: the types that all crates share |
//! | [`prune`], [`quant`], [`reconstruct`] | methods: scores and masks, scales and rounding, updates of the remaining weights |
//! | [`formats`] | readers and writers of model files |
//! | [`recipe`], [`plan`] | recipes, and the plan for each tensor |
//! | [`writer`] | encodes, writes and verifies weight files |
//! | [`pipeline`] | runs recipes, batches and verification |
//! | [`report`] | report pages and their data |
//! | `nn` | burn modules: masks and grids, layers on codes, loading and export |
//! | `distill` | losses and training loops |
//! | `models`, `eval` | networks that run: BERT, Llama, ViT, ResNet and more families; their quality metrics |
//!
//! # Features
//!
//! | feature | default | adds | extra crates |
//! |---|---|---|---|
//! | none | | recipes, plans, runs, reports, verification; safetensors, burnpack, compressed-tensors | 160 in all |
//! | `nn` | yes | burn modules: [`compress()`], [`nn`] | 38 |
//! | `distill` | yes | losses and training loops: [`distill`] | 39 |
//! | `flex` | yes | burn's CPU backend | |
//! | `pytorch` | | PyTorch files: `.pt`, `.pth`, `.bin`, TorchScript | 48 |
//! | `model` | | `models`, `eval`: networks that run; text, images, arrays; evaluate and distill stages of recipes | 91 |
//! | `tui` | | burn's full-screen training dashboard | 64 |
//! | `cuda` | | NVIDIA GPUs; includes `model` | |
//!
//! "Extra crates" counts what the feature adds to a program with the default features and burn's `std`,
//! `autodiff`, `optim`, `train` and `flex`. Those alone are 200 crates.
//!
//! The command line program is a separate package, `briquette-cli`. It has all features but `cuda`.

pub use briquette_core as core;
#[cfg(feature = "distill")]
pub use briquette_distill as distill;
#[cfg(feature = "model")]
pub use briquette_eval as eval;
pub use briquette_formats as formats;
pub use briquette_graph as graph;
pub use briquette_methods::{prune, quant, reconstruct};
#[cfg(feature = "model")]
pub use briquette_models as models;
#[cfg(feature = "nn")]
pub use briquette_nn as nn;
pub use briquette_pipeline as pipeline;
pub use briquette_pipeline::report;
pub use briquette_recipe as recipe;
pub use briquette_recipe::plan;
pub use briquette_writer as writer;

pub use briquette_core::{Error, ErrorKind, Result};
#[cfg(feature = "nn")]
pub use briquette_pipeline::in_memory::{AboutModule, compress, compress_as};
pub use briquette_pipeline::{Plan, Recipe, Report, RunOptions, run};

/// Items that most programs need.
pub mod prelude {
    pub use crate::core::{Decision, Encoded, Mask, QuantParams, decode, encode, fake_quantize};
    pub use crate::{Error, ErrorKind, Plan, Recipe, Report, RunOptions, run};
    pub use briquette_formats::{Checkpoint, TensorSource};
    pub use briquette_methods::prune::Ratio;
    pub use briquette_methods::quant::Scheme;
    pub use briquette_recipe::{PruneStage, QuantizeStage};
}
