//! Watches a training: evaluates the student after each epoch, and shows steps and epochs.

use crate::training::dense_module;
use crate::training::learner::Learner;
use crate::training::shown::TrainingDisplay;
use briquette_core::Result;
use briquette_core::memory::MemoryLimit;
use briquette_distill::Watch;
use briquette_distill::history::{EpochRecord, StepRecord};
use briquette_eval::evaluate::{RunOutputs, compare, run};
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Input, LoadedModel};
use briquette_nn::ToDType;
use briquette_recipe::DistillStage;
use briquette_recipe::raw::RawData;
use burn::module::Module;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The evaluation data, and the teacher's outputs for it.
struct Exam {
    data: Data,
    spec: DataSpec,
    batching: Batching,
    reference: Option<RunOutputs>,
}

/// Returns the data to evaluate epochs on, as `eval`: the data to choose by, or else that of the evaluation.
pub(crate) fn data_to_choose_by(data: &RawData) -> Option<RawData> {
    match &data.select {
        Some(select) => Some(RawData { eval: Some(select.clone()), labels: None, ..data.clone() }),
        None => data.eval.is_some().then(|| data.clone()),
    }
}

/// Evaluates the student after each epoch, and shows steps and epochs.
pub(crate) struct Watcher {
    exam: Option<Exam>,
    /// The student's tokenizer, names and config; its network is that of the evaluated epoch.
    model: LoadedModel,
    shown: Arc<TrainingDisplay>,
}

impl Watcher {
    /// Opens the evaluation data, if there is any, within a limit on the memory of the host, and runs the teacher on it once.
    pub(crate) fn new(
        stage: &DistillStage,
        model: &LoadedModel,
        teacher: Option<&LoadedModel>,
        shown: Arc<TrainingDisplay>,
        limit: Option<MemoryLimit>,
    ) -> Result<Self> {
        let mut watcher = Self { exam: None, model: model.clone(), shown };
        if let Some(data) = data_to_choose_by(&stage.data) {
            let spec = crate::training::translate::spec_of(&data);
            let workers = stage.data.workers.unwrap_or(2);
            let batching = Batching { batch_size: stage.memory.batch_size, workers };
            let data = spec.open_within(model.arch.task(), limit)?;
            let exam = Exam { data, spec, batching, reference: None };
            let reference = teacher.map(|teacher| watcher.sit(&exam, teacher)).transpose()?;
            watcher.exam = Some(Exam { reference, ..exam });
        }
        Ok(watcher)
    }

    fn sit(&self, exam: &Exam, model: &LoadedModel) -> Result<RunOutputs> {
        run(model, &exam.data, &exam.spec, exam.batching, &mut |_, _| self.shown.check_stop())
    }
}

impl Watch<Learner> for Watcher {
    fn evaluate(&mut self, student: &Learner) -> Result<BTreeMap<String, f64>> {
        let Some(exam) = &self.exam else { return Ok(BTreeMap::new()) };
        // As the output will run: masks and grids applied, also to inputs of layers, in f32.
        let network = student.network.valid().single();
        let mut model = LoadedModel { network, ..self.model.clone() };
        if let (Some(dense), Input::Text { pooling, .. }) = (&student.dense, &mut model.input) {
            pooling.dense = Some(dense_module::trained(dense)?);
        }
        let found = self.sit(exam, &model)?;
        let compared = compare(model.arch, &exam.data, &found, exam.reference.as_ref())?;
        Ok(compared.metrics)
    }

    fn stepped(&mut self, record: &StepRecord) -> Result<()> {
        self.shown.step(record)
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        self.shown.epoch(record)
    }
}
