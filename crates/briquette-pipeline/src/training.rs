//! The stage of a recipe that trains a student to follow a teacher: both and their data opened from disk, zeros and grids that stay in place, and the
//! student written to disk with its report.
//!
//! Non-goals: losses and the training loop, which are those of `briquette-distill`, and what comes before and after a training.

mod devices;
mod examples;
mod held;
mod learner;
mod outcome;
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
