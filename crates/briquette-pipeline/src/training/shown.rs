//! The display of a training: full screen, or line by line.

use briquette_core::Result;
#[cfg(feature = "tui")]
use briquette_distill::Screen;
use briquette_distill::history::{EpochRecord, StepRecord};
use briquette_writer::context::{Progress, RunOptions, Stop};
#[cfg(feature = "tui")]
use std::sync::MutexGuard;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of steps between two lines.
const STEPS_PER_LINE: usize = 50;
/// The maximum time between two lines, unless a step takes longer.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows a training, and stops it on request.
pub(crate) struct TrainingDisplay {
    #[cfg(feature = "tui")]
    screen: Option<Mutex<Screen>>,
    progress: Arc<dyn Progress>,
    stop: Stop,
    n_steps: usize,
    /// When the last line was shown.
    shown: Mutex<Instant>,
}

impl TrainingDisplay {
    /// Creates the display of a training.
    pub(crate) fn new(options: &RunOptions, n_epochs: usize, n_items: usize, n_steps: usize) -> Self {
        #[cfg(not(feature = "tui"))]
        let _ = (n_epochs, n_items);
        Self {
            #[cfg(feature = "tui")]
            screen: options.screen.then(|| Mutex::new(Screen::new(n_epochs, n_items, n_steps))),
            progress: options.progress.clone(),
            stop: options.stop.clone(),
            n_steps,
            shown: Mutex::new(Instant::now()),
        }
    }

    /// Shows a step.
    pub(crate) fn step(&self, record: &StepRecord) -> Result<()> {
        self.check_stop()?;
        self.progress.advance(0);
        #[cfg(feature = "tui")]
        if let Some(mut screen) = self.screen() {
            return screen.step(record);
        }
        if record.step.is_multiple_of(STEPS_PER_LINE) || record.step == 1 || self.is_line_due() {
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            let StepRecord { step, epoch, loss, learning_rate, seconds, .. } = record;
            self.progress.line(&format!(
                "epoch {epoch}, step {step} of {}: loss {loss:.5}, learning rate {learning_rate:.2e}, {:.0} ms per step",
                self.n_steps,
                1e3 * seconds
            ));
        }
        Ok(())
    }

    /// Returns whether the last line is too long ago.
    fn is_line_due(&self) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= LINE_INTERVAL
    }

    /// Shows the end of an epoch.
    pub(crate) fn epoch(&self, record: &EpochRecord) -> Result<()> {
        self.check_stop()?;
        #[cfg(feature = "tui")]
        if let Some(mut screen) = self.screen() {
            return screen.epoch(record);
        }
        let metrics = record.metrics.iter().map(|(name, value)| format!(", {name} {value:.5}"));
        let best = if record.is_best { ", the best so far" } else { "" };
        let line = format!("epoch {}: mean loss {:.5}{}{best}", record.epoch, record.loss, metrics.collect::<String>());
        self.progress.line(&line);
        Ok(())
    }

    /// Ends the display and restores the terminal.
    pub(crate) fn end(&self) {
        #[cfg(feature = "tui")]
        if let Some(mut screen) = self.screen() {
            screen.close();
        }
    }

    /// Returns an error once a stop was requested.
    pub(crate) fn check_stop(&self) -> Result<()> {
        self.stop.check()
    }

    #[cfg(feature = "tui")]
    fn screen(&self) -> Option<MutexGuard<'_, Screen>> {
        self.screen.as_ref().map(|screen| screen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
