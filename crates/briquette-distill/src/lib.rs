//! Trains a student network to follow a teacher.
//!
//! [`loss`] has the losses as pure functions of burn tensors, [`Blend`] sums several losses, and [`LayerMap`]
//! pairs layers: enough for a custom training loop. [`Distiller`] is a complete loop. Any [`Traced`] network
//! learns from a [`Teacher`] over [`TrainingData`]; masks and grids that `briquette-nn` attached to it stay in
//! place. A killed run resumes from its last checkpoint.
//!
//! Non-goals: architectures (any network that implements a trait can be a student), file formats, and printing.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_distill::loss::{labels, logits};
//! use burn::tensor::{Device, Int, Tensor};
//!
//! let device = Device::flex().autodiff();
//! let student = Tensor::<2>::from_floats([[1.0, 0.0, -1.0]], &device).require_grad();
//! let teacher = Tensor::<2>::from_floats([[2.0, 1.0, -3.0]], &Device::flex()); // a constant
//! let truth = Tensor::<1, Int>::from_ints([0], &Device::flex());
//! let loss = logits::kl(student.clone(), teacher, 4.0) * 0.7 + labels::cross_entropy(student.clone(), truth, 0.0) * 0.3;
//! assert!(student.grad(&loss.backward()).is_some());
//! # }
//! ```

mod average;
mod blend;
mod by_layer;
mod cached;
pub mod checkpoints;
mod custom;
mod distiller;
mod finite;
mod fit;
mod foreign;
mod grads;
pub mod history;
mod items;
mod layer_map;
mod layered;
mod loader;
pub mod loss;
mod moments;
mod on_policy;
mod order;
mod outputs;
mod projection;
mod rate;
mod run;
#[cfg(feature = "tui")]
mod screen;
mod settings;
mod several;
mod shared_teacher;
mod step;
mod targets;
mod traced;
mod train_step;
mod trained;
mod try_out;

pub use blend::{Blend, Blended, Distance, Divergence, Loss, Match, Relation, Term};
pub use cached::Cached;
pub use checkpoints::Checkpoints;
pub use custom::Custom;
pub use distiller::Distiller;
pub use finite::check_finite;
pub use fit::Fit;
pub use foreign::Foreign;
pub use layer_map::LayerMap;
pub use layered::Layered;
pub use loader::{BatchLoader, first_batch, training_batches};
pub use order::order;
pub use outputs::{Outputs, Wanted};
pub use projection::Projections;
pub use rate::Rate;
pub use run::{TrainingOutcome, Watch, n_steps};
#[cfg(feature = "tui")]
pub use screen::Screen;
pub use settings::{Goal, Optimizer, OwnSchedule, Settings};
pub use several::{EachStep, Several, SharedTrainingData, steps_of_epoch};
pub use shared_teacher::SharedTeacher;
pub use targets::Targets;
pub use traced::{DynTeacher, DynTrainingData, Frozen, Teacher, Traced, TrainingBatch, TrainingData};
pub use train_step::{DistillOutput, Distilling};
pub use trained::Trained;
