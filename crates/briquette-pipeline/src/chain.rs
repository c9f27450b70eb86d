//! Recipes that train or factorize: what comes before the last stages is kept beside the output until all is done, so that a run that
//! was killed goes on where it stood.
//!
//! `OUT.stages/` holds `recipe.json`, an output directory for each finished part (`1-compress`, `1-distill`, `2-factorize`, ..) and, while
//! one trains, its checkpoints. A part that is there is whole: directories appear in one step. Jobs of a batch that train the same share
//! such a directory.

mod published;
mod training;
mod work;

use crate::contents::{Contents, InputHasher};
use crate::context::RunOptions;
use crate::distill::{self, Asked, DistillReport};
use crate::factorize::{self, FactorReport};
use crate::inspect;
use crate::plan::{Plan, student_of};
use crate::recipe::paths::stages_beside;
use crate::recipe::{DistillStage, FactorizeStage, Recipe, RecipePart, Selection, Stage, Whole};
use crate::report::{Original, Report, StageBytes};
use crate::run::{Origin, draft_of, inputs_of, run_stages};
use briquette_core::{ErrorKind, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, Profile, draft, json, limits};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Instant;
pub(crate) use training::{asked_of_training, read_by_training};
use work::Work;
pub(crate) use work::discard;

/// What a batch knows of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfBatch<'a> {
    /// What lies at every path that it reads.
    pub(crate) contents: &'a Contents,
    /// Where what comes up to its last training is kept for other jobs, where there are any.
    pub(crate) shared: Option<&'a Path>,
}

/// Runs every part of a recipe that trains or factorizes.
pub(crate) fn run(recipe: &Recipe, options: &RunOptions, of_batch: Option<OfBatch>) -> Result<Report> {
    let started = Instant::now();
    let original = crate::open::model(recipe)?;
    // Whatever can be known now should not be found out after hours of training.
    let student = student_of(recipe, &original)?;
    Plan::of(recipe, &original, student.as_deref(), &options.stop)?;
    distills(recipe).try_for_each(|stage| distill::check_devices(stage, &options.devices))?;
    draft::remove_left_behind(&recipe.output);
    let shared = of_batch.and_then(|of| of.shared);
    let directory = shared.map_or_else(|| stages_beside(&recipe.output), Path::to_path_buf);
    let check_output = || Draft::create(&recipe.output, &inputs_of(recipe, &original), options.force).map(drop);
    let may_be_done = shared.is_none() && directory.join(published::FILE).exists();
    if !may_be_done {
        check_output()?;
    }
    let contents = match of_batch {
        Some(of) => of.contents.clone(),
        None => InputHasher::default().of_recipe(recipe, &original, &options.stop)?,
    };
    let chain = Chain { recipe, original: &original, contents, options, is_shared: shared.is_some(), started };
    if may_be_done {
        if let Some(report) = chain.finish(&directory)? {
            return Ok(report);
        }
        check_output()?;
    }
    let work = Work::at(directory, recipe)?;
    work.begin(&training::identity(recipe, &chain.contents, options), options.force)?;
    let report = chain.run_parts(&work).map_err(|error| work.explain(error));
    // What was refused before anything was learned is not gone on with.
    let is_done = match &report {
        Ok(_) => !chain.is_shared,
        Err(error) => error.kind == ErrorKind::Refused && !work.holds_parts(),
    };
    if is_done {
        let beside = if chain.is_shared { work.directory().to_path_buf() } else { recipe.output.clone() };
        work.discard(&beside);
    }
    report
}

/// A run of a recipe that trains or factorizes.
struct Chain<'a> {
    recipe: &'a Recipe,
    original: &'a Checkpoint,
    /// What lies at every path that it reads.
    contents: Contents,
    options: &'a RunOptions,
    /// Whether other jobs use the same parts.
    is_shared: bool,
    started: Instant,
}

impl Chain<'_> {
    /// The report of the output that the same run made before it was killed while it cleaned up; that is done now.
    fn finish(&self, directory: &Path) -> Result<Option<Report>> {
        let work = Work::at(directory.to_path_buf(), self.recipe)?;
        let report = published::finished(work.directory(), self.recipe, &self.contents, self.options)?;
        if report.is_some() {
            work.discard(&self.recipe.output);
            self.options.progress.line("the output is there: an earlier run of this recipe ended while it cleaned up");
        }
        Ok(report)
    }

    /// Every part, then the last stages. What is finished already is taken as it is.
    fn run_parts(&self, work: &Work) -> Result<Report> {
        let Self { recipe, original, options, .. } = self;
        let (about, notes) = (Original::of(original, &recipe.roles)?, inspect::notes_of(original));
        let mut origin = Origin { original: Some(about), notes, ..Origin::of(recipe) };
        origin.bytes.push(StageBytes { stage: "original".into(), file_bytes: original.weight_bytes() });
        let mut model = recipe.model.clone();
        let mut pruned: Vec<&Selection> = Vec::new();
        for (index, part) in recipe.parts.iter().enumerate() {
            model = work.compress(index, part, recipe, &model, options, &mut origin)?;
            pruned.extend(part.stages.iter().filter_map(prune_selection));
            let kind = match &part.then {
                Whole::Distill(stage) => {
                    let (trained, now) = work.distill(index, stage, recipe, &model, &pruned, options)?;
                    origin.note(format!("distill {}", index + 1), trained.wall_seconds.max(now), now);
                    origin.trained.push(trained);
                    pruned.extend(stage.gradual.as_ref().map(|gradual| &gradual.selection));
                    origin.metrics = Some(work.checkpoints(index).join("metrics.jsonl"));
                    "distill"
                }
                Whole::Factorize(stage) => {
                    let since = Instant::now();
                    origin.factorized.extend(work.factorize(index, stage, recipe, &model, options)?);
                    let now = since.elapsed().as_secs_f64();
                    origin.note(format!("factorize {}", index + 1), now, now);
                    "factorize"
                }
            };
            model = work.part(index, kind);
            push_bytes(&mut origin, format!("{kind} {}", index + 1), &model)?;
        }
        let last = Recipe { model, parts: Vec::new(), ..(*recipe).clone() };
        origin.spent += self.started.elapsed().as_secs_f64();
        let (draft, report) = draft_of(&last, options, &origin)?;
        if !self.is_shared {
            published::note(work.directory(), &draft, recipe, &self.contents)?;
        }
        draft.publish()?;
        Ok(report)
    }
}

/// The stages that train.
fn distills(recipe: &Recipe) -> impl Iterator<Item = &DistillStage> {
    recipe.parts.iter().filter_map(|part| part.then.as_distill())
}

fn prune_selection(stage: &Stage) -> Option<&Selection> {
    match stage {
        Stage::Prune(stage) => Some(&stage.selection),
        Stage::Quantize(_) | Stage::Cast(_) => None,
    }
}

impl Origin {
    /// A part took so many seconds, of which so many were now.
    fn note(&mut self, part: String, seconds: f64, now: f64) {
        self.seconds.push((part, seconds));
        self.spent += seconds - now;
    }
}

fn push_bytes(origin: &mut Origin, stage: String, directory: &Path) -> Result<()> {
    let file_bytes = Checkpoint::open(directory)?.weight_bytes();
    origin.bytes.push(StageBytes { stage, file_bytes });
    Ok(())
}

impl Work {
    /// The file stages before a training or the factors. Returns what it starts from.
    fn compress(
        &self,
        index: usize,
        part: &RecipePart,
        recipe: &Recipe,
        model: &Path,
        options: &RunOptions,
        origin: &mut Origin,
    ) -> Result<PathBuf> {
        if part.stages.is_empty() {
            return Ok(model.to_path_buf());
        }
        let (output, since) = (self.part(index, "compress"), Instant::now());
        if !self.is_done(&output, options)? {
            let asked = Recipe {
                model: model.to_path_buf(),
                output: output.clone(),
                parts: Vec::new(),
                stages: part.stages.clone(),
                evaluate: None,
                profile: Profile::Briquette,
                ..recipe.clone()
            };
            run_stages(&asked, options, &Origin::of(&asked))?;
        }
        let now = since.elapsed().as_secs_f64();
        origin.note(format!("compress {}", index + 1), now, now);
        push_bytes(origin, format!("compress {}", index + 1), &output)?;
        Ok(output)
    }

    /// One training, and the seconds that it took now.
    fn distill(
        &self,
        index: usize,
        stage: &DistillStage,
        recipe: &Recipe,
        model: &Path,
        pruned: &[&Selection],
        options: &RunOptions,
    ) -> Result<(DistillReport, f64)> {
        let (output, work) = (self.part(index, "distill"), self.checkpoints(index));
        let mut now = 0.0;
        let asked =
            Asked { stage, pruned, roles: &recipe.roles, original: &recipe.model, model, output: &output, work: &work };
        if !self.is_done(&output, options)? {
            let since = Instant::now();
            distill::train(&asked, options)?;
            now = since.elapsed().as_secs_f64();
        }
        Ok((read_report(&output.join(distill::REPORT))?, now))
    }

    /// The factors of one stage.
    fn factorize(
        &self,
        index: usize,
        stage: &FactorizeStage,
        recipe: &Recipe,
        model: &Path,
        options: &RunOptions,
    ) -> Result<Vec<FactorReport>> {
        let output = self.part(index, "factorize");
        if !self.is_done(&output, options)? {
            factorize::factorize(recipe, stage, model, &output, options)?;
        }
        read_report(&output.join(factorize::REPORT))
    }
}

/// What a part said of itself.
fn read_report<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)?;
    json::parse(&bytes, "the report", path)
}
