//! What sees a training go by: evaluates, tells how far it is, and stops it.

use super::learner::Learner;
use crate::context::{Progress, RunOptions, Stop};
use crate::recipe::DistillStage;
use briquette_core::{Error, ErrorKind, Result};
use briquette_distill::Watch;
use briquette_distill::history::{EpochRecord, StepRecord};
use briquette_models::LoadedModel;
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec};
use briquette_models::evaluate::{Run, compare, run};
use briquette_nn::ToDType;
use burn::module::Module;
use std::collections::BTreeMap;

/// Steps between two lines of progress.
const STEPS_PER_LINE: usize = 50;

/// Data to evaluate on, and what the teacher made of it.
struct Exam {
    data: Data,
    spec: DataSpec,
    batching: Batching,
    reference: Option<Run>,
}

/// Sees a training go by.
pub(super) struct Watcher<'a> {
    exam: Option<Exam>,
    /// The student but for its network.
    model: LoadedModel,
    options: &'a RunOptions,
    n_steps: usize,
}

impl<'a> Watcher<'a> {
    /// Opens the data to evaluate on, where there is any, and runs the teacher over it once.
    pub(super) fn new(
        stage: &DistillStage,
        model: &LoadedModel,
        teacher: Option<&LoadedModel>,
        options: &'a RunOptions,
        n_steps: usize,
    ) -> Result<Self> {
        let mut watcher = Self { exam: None, model: model.clone(), options, n_steps };
        if stage.data.eval.is_some() {
            let spec = crate::evaluate::spec_of(&stage.data);
            let workers = stage.data.workers.unwrap_or(2);
            let batching = Batching { batch_size: stage.memory.batch_size, workers };
            let data = spec.open(model.arch.family())?;
            let exam = Exam { data, spec, batching, reference: None };
            let reference = teacher.map(|teacher| watcher.sit(&exam, teacher)).transpose()?;
            watcher.exam = Some(Exam { reference, ..exam });
        }
        Ok(watcher)
    }

    fn sit(&self, exam: &Exam, model: &LoadedModel) -> Result<Run> {
        run(model, &exam.data, &exam.spec, exam.batching, &mut |_, _| self.check_stop())
    }

    fn check_stop(&self) -> Result<()> {
        check_stop(&self.options.stop)
    }
}

fn check_stop(stop: &Stop) -> Result<()> {
    stop.check().map_err(|error| match error.kind {
        ErrorKind::Interrupted(signal) => {
            let message = format!("stopped by signal {signal}; run it again to go on from the last checkpoint");
            Error { message, ..error }
        }
        _ => error,
    })
}

/// Tells of a step now and then, and stops where that is wished for.
pub(super) fn stepped(record: &StepRecord, n_steps: usize, progress: &dyn Progress, stop: &Stop) -> Result<()> {
    if record.step.is_multiple_of(STEPS_PER_LINE) || record.step == 1 {
        let StepRecord { step, epoch, loss, learning_rate, seconds, .. } = record;
        progress.line(&format!(
            "epoch {epoch}, step {step} of {n_steps}: loss {loss:.5}, learning rate {learning_rate:.2e}, {:.0} ms a step",
            1e3 * seconds
        ));
    }
    check_stop(stop)
}

impl Watch<Learner> for Watcher<'_> {
    fn evaluate(&mut self, student: &Learner) -> Result<BTreeMap<String, f64>> {
        let Some(exam) = &self.exam else { return Ok(BTreeMap::new()) };
        // As it will run: masks and grids applied, in f32.
        let network = student.network.valid().materialize().single();
        let model = LoadedModel { network, ..self.model.clone() };
        let found = self.sit(exam, &model)?;
        let compared = compare(model.arch, &exam.data, &found, exam.reference.as_ref())?;
        Ok(compared.metrics)
    }

    fn stepped(&mut self, record: &StepRecord) -> Result<()> {
        stepped(record, self.n_steps, self.options.progress.as_ref(), &self.options.stop)
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        let metrics = record.metrics.iter().map(|(name, value)| format!(", {name} {value:.5}"));
        let best = if record.is_best { ", the best so far" } else { "" };
        let line = format!("epoch {}: mean loss {:.5}{}{best}", record.epoch, record.loss, metrics.collect::<String>());
        self.options.progress.line(&line);
        self.check_stop()
    }
}
