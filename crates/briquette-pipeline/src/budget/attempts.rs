//! The attempts of a budget, and their duration.

use crate::report::{Origin, Report};
use briquette_formats::Draft;
use std::time::Instant;

/// An output with its duration in seconds.
pub(super) struct Attempt {
    pub(super) draft: Draft,
    pub(super) report: Report,
    pub(super) seconds: f64,
}

/// The duration of all attempts.
pub(super) struct AttemptClock {
    started: Instant,
    pub(super) n_attempts: usize,
}

impl AttemptClock {
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), n_attempts: 0 }
    }

    /// Adds the duration of all attempts except the chosen one to its report, before the phases of that
    /// attempt.
    pub(super) fn add_others(&self, report: &mut Report, origin: &Origin, seconds_of_chosen: f64) {
        let seconds = self.started.elapsed().as_secs_f64() - seconds_of_chosen;
        match self.n_attempts.saturating_sub(1) {
            0 => {}
            1 => report.seconds.insert(origin.seconds.len(), ("1 other attempt".into(), seconds)),
            n => report.seconds.insert(origin.seconds.len(), (format!("{n} other attempts"), seconds)),
        }
    }
}
