//! The stage that trains a student to follow a teacher.
//!
//! It opens both and their data, keeps zeros and grids in place, and writes the student with its report.
//!
//! Non-goals: losses and the training loop (`briquette-distill`), and the steps before and after a training.

mod dense_module;
mod devices;
mod examples;
mod held;
mod learner;
mod outcome;
mod pixel_map;
mod settings;
mod setup;
mod shown;
mod student;
mod train;
mod translate;
mod watch;

pub use devices::check_devices;
pub(crate) use devices::devices;
pub(crate) use settings::needs_teacher;
pub(crate) use student::predicted;
pub(crate) use train::train;
pub(crate) use translate::{half, spec_of, teacher_of};
