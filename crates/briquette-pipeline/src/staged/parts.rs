//! The parts of a recipe.
//!
//! Each has file stages, then a stage that works on a whole model. Finished parts are reused.

use super::work::Work;
use crate::compress::compress;
use crate::distill;
use crate::report::inspect;
use crate::report::{DistillReport, FactorReport, FoldReport, Origin, Original, ShrinkReport};
use crate::transform;
use briquette_core::Result;
use briquette_formats::{Checkpoint, InputFile, OutputFormat, json, limits};
use briquette_recipe::{
    DistillStage, ModelStage, Recipe, RecipePart, Selection, Stage, StageKind, TrainingJob, TransformStage,
};
use briquette_writer::context::RunOptions;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The progress of the parts.
pub(super) struct PartsRun<'a> {
    recipe: &'a Recipe,
    options: &'a RunOptions,
    work: &'a Work,
    /// The model after the parts so far.
    model: PathBuf,
    /// The pruned tensors so far: their zeros stay zero.
    pruned: Vec<&'a Selection>,
    /// The report data of the parts so far.
    origin: Origin,
}

impl<'a> PartsRun<'a> {
    /// Returns the state before the first part of a run that began at `started`.
    pub(super) fn of(
        recipe: &'a Recipe,
        original: &Checkpoint,
        work: &'a Work,
        options: &'a RunOptions,
        started: Instant,
    ) -> Result<Self> {
        let (about, notes) = (Original::of(original, &recipe.roles)?, inspect::notes_of(original));
        let mut origin = Origin { original: Some(about), notes, started, ..Origin::of(recipe) };
        origin.add_bytes("original".into(), original.weight_bytes());
        Ok(Self { recipe, options, work, model: recipe.model.clone(), pruned: Vec::new(), origin })
    }

    /// Runs every part. Returns the model for the last stages, and the report data.
    pub(super) fn run(mut self) -> Result<(PathBuf, Origin)> {
        for (index, part) in self.recipe.parts.iter().enumerate() {
            self.compress(index, part)?;
            match &part.then {
                ModelStage::Distill(stage) => self.distill(index, stage)?,
                ModelStage::Transform(stage) => self.transform(index, part.then.kind(), stage)?,
            }
            let kind = part.then.kind();
            self.continue_from(self.work.part(index, kind.name()), format!("{kind} {}", index + 1))?;
        }
        Ok((self.model, self.origin))
    }

    /// Sets the model that the next part starts from.
    pub(super) fn continue_from(&mut self, model: PathBuf, stage: String) -> Result<()> {
        self.origin.add_bytes(stage, Checkpoint::open(&model)?.weight_bytes());
        self.model = model;
        Ok(())
    }

    /// Runs the file stages of a part, if it has any.
    fn compress(&mut self, index: usize, part: &'a RecipePart) -> Result<()> {
        if part.stages.is_empty() {
            return Ok(());
        }
        let (output, since) = (self.work.part(index, "compress"), Instant::now());
        if !self.work.is_done(&output, self.options)? {
            let job = Recipe {
                model: self.model.clone(),
                output: output.clone(),
                parts: Vec::new(),
                stages: part.stages.clone(),
                // These belong to the last stages.
                budget: None,
                scales: None,
                evaluate: None,
                profile: OutputFormat::Briquette,
                ..self.recipe.clone()
            };
            let scratch = self.work.part(index, Work::SOLVED);
            compress(&job, self.options, &Origin::of(&job), Some(&scratch))?;
        }
        let (name, now) = (format!("compress {}", index + 1), since.elapsed().as_secs_f64());
        self.origin.add_seconds(name.clone(), now, now);
        self.pruned.extend(part.stages.iter().filter_map(prune_selection));
        self.continue_from(output, name)
    }

    /// Trains the student of a stage.
    fn distill(&mut self, index: usize, stage: &'a DistillStage) -> Result<()> {
        let (output, work) = (self.work.part(index, StageKind::Distill.name()), self.work.checkpoints(index));
        let job = TrainingJob {
            stage,
            pruned: &self.pruned,
            roles: &self.recipe.roles,
            calibration: self.recipe.calibration.as_ref(),
            original: &self.recipe.model,
            model: &self.model,
            output: &output,
            work: &work,
        };
        train(&job, index, (self.work, self.options), &mut self.origin)?;
        self.pruned.extend(stage.gradual.as_ref().map(|gradual| &gradual.selection));
        Ok(())
    }

    /// Replaces tensors of the model.
    fn transform(&mut self, index: usize, kind: StageKind, stage: &TransformStage) -> Result<()> {
        let (output, since) = (self.work.part(index, kind.name()), Instant::now());
        if !self.work.is_done(&output, self.options)? {
            transform::run(self.recipe, stage, &self.model, &output, self.options)?;
        }
        let path = output.join(transform::report_file(stage));
        match stage {
            TransformStage::Factorize(_) => self.origin.factorized.extend(read_report::<Vec<FactorReport>>(&path)?),
            TransformStage::Shrink(_) => self.origin.shrunk.push(read_report::<ShrinkReport>(&path)?),
            TransformStage::Fold(_) => self.origin.folded.push(read_report::<FoldReport>(&path)?),
        }
        let now = since.elapsed().as_secs_f64();
        self.origin.add_seconds(format!("{kind} {}", index + 1), now, now);
        Ok(())
    }
}

/// Runs a training that is not finished yet, and adds its report.
pub(super) fn train(
    job: &TrainingJob,
    index: usize,
    (work, options): (&Work, &RunOptions),
    origin: &mut Origin,
) -> Result<()> {
    let mut now = 0.0;
    if !work.is_done(job.output, options)? {
        let since = Instant::now();
        distill::train(job, options)?;
        now = since.elapsed().as_secs_f64();
    }
    let trained: DistillReport = read_report(&job.output.join(DistillReport::FILE))?;
    origin.add_seconds(format!("distill {}", index + 1), trained.wall_seconds.max(now), now);
    origin.trained.push(trained);
    origin.metrics = Some(job.work.join("metrics.jsonl"));
    Ok(())
}

fn prune_selection(stage: &Stage) -> Option<&Selection> {
    if let Stage::Prune(stage) = stage { Some(&stage.selection) } else { None }
}

/// Reads the report of a part.
pub(super) fn read_report<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = InputFile::open(path)?.read_all(limits::MAX_OWN_BYTES)?;
    json::parse(&bytes, "the report", path)
}
