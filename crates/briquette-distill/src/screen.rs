//! A full-screen terminal view of a training, rendered by burn: curves, metrics and progress.

use crate::history::{EpochRecord, StepRecord};
use briquette_core::{Error, ErrorKind, Result};
use burn::train::Interrupter;
use burn::train::logger::TrainingProgressLogger;
use burn::train::metric::{MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry};
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use burn::train::renderer::{MetricState, MetricsRenderer, MetricsRendererTraining};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The signal of a stop at the terminal.
const SIGINT: i32 = 2;

/// A full-screen view of a training, from its first step until it is dropped. `q` opens a dialog to stop.
pub struct Screen {
    n_epochs: usize,
    n_items: usize,
    steps_of_epoch: usize,
    open: Option<Open>,
}

/// The open view.
struct Open {
    renderer: TuiMetricsRendererWrapper,
    interrupter: Interrupter,
    /// The epoch that is displayed.
    epoch: usize,
    known: BTreeSet<String>,
}

impl Screen {
    /// Creates the view of a training of `n_steps` steps in `n_epochs` epochs over `n_items` items.
    ///
    /// Nothing is rendered before the first step.
    pub fn new(n_epochs: usize, n_items: usize, n_steps: usize) -> Self {
        Self { n_epochs, n_items, steps_of_epoch: n_steps.div_ceil(n_epochs.max(1)).max(1), open: None }
    }

    /// Shows a step.
    ///
    /// # Errors
    /// Interrupted: the user requested a stop at the terminal.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        let (n_epochs, n_items) = (self.n_epochs, self.n_items);
        let done = (record.step.saturating_sub(1) % self.steps_of_epoch + 1) * n_items / self.steps_of_epoch;
        self.draw(|open| {
            if open.epoch == 0 {
                open.renderer.start(n_epochs, record.epoch, None, Some("q to stop; the same command resumes"));
            }
            if open.epoch != record.epoch {
                open.renderer.start_split("train", n_items);
                open.epoch = record.epoch;
            }
            for (name, value) in [("loss", record.loss), ("learning rate", record.learning_rate)] {
                let state = open.state(name, value);
                open.renderer.update_train(state);
            }
            open.renderer.update_split(done);
        })
    }

    /// Shows the result of an epoch.
    ///
    /// # Errors
    /// See [`step`](Self::step).
    pub fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.draw(|open| {
            open.renderer.end_split();
            open.renderer.start_split("valid", 1);
            for (name, value) in &record.metrics {
                let state = open.state(name, *value);
                open.renderer.update_valid(state);
            }
            open.renderer.update_split(1);
            open.renderer.end_split();
            open.renderer.update_epoch(record.epoch);
        })
    }

    /// Closes the view and restores the terminal.
    pub fn close(&mut self) {
        if let Some(open) = self.open.take() {
            // After a request to stop immediately, burn's renderer panics at its next update, and again when
            // dropped.
            catch_unwind(AssertUnwindSafe(|| drop(open))).ok();
        }
    }

    /// Updates the view. After a request to stop immediately, burn's renderer panics in the calling thread.
    fn draw(&mut self, tell: impl FnOnce(&mut Open)) -> Result<()> {
        let open = self.open.get_or_insert_with(Open::new);
        let is_told = catch_unwind(AssertUnwindSafe(|| tell(open))).is_ok();
        if is_told && !open.interrupter.should_stop() {
            return Ok(());
        }
        self.close();
        let message = "stopped".to_string();
        Err(Error { kind: ErrorKind::Interrupted(SIGINT), message, ..Error::interrupted(SIGINT) })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

impl Open {
    fn new() -> Self {
        let interrupter = Interrupter::new();
        let renderer = TuiMetricsRendererWrapper::new(interrupter.clone(), None);
        Self { renderer, interrupter, epoch: 0, known: BTreeSet::new() }
    }

    /// Returns a value of a metric, and registers the metric if it is new.
    fn state(&mut self, name: &str, value: f64) -> MetricState {
        let id = MetricId::new(Arc::new(name.to_string()));
        if self.known.insert(name.to_string()) {
            self.renderer.register_metric(MetricDefinition {
                metric_id: id.clone(),
                name: Arc::new(name.to_string()),
                description: None,
                attributes: NumericAttributes::default().into(),
            });
        }
        let shown = if value.abs() < 1e-3 { format!("{value:.2e}") } else { format!("{value:.5}") };
        MetricState::Numeric(
            MetricEntry::new(id, SerializedEntry::new(shown, value.to_string())),
            Some(NumericEntry::Value(value)),
        )
    }
}
