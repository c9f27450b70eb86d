//! Recipes that train or factorize: what comes before the last stages is kept beside the output until all is done, so that a run that
//! was killed goes on where it stood.
//!
//! `OUT.stages/` holds `recipe.json`, an output directory for each finished part (`1-compress`, `1-distill`, `2-factorize`, ..) and, while
//! one trains, its checkpoints. A part that is there is whole: directories appear in one step. Jobs of a batch that train the same share
//! such a directory.

mod parts;
mod published;
mod steps;
mod training;
mod work;

use crate::compress::inputs_of;
use crate::contents::{InputHasher, InputHashes};
use crate::distill;
use crate::distill::student_of;
use crate::output::{compressed_draft, finish};
use briquette_core::{ErrorKind, Result};
use briquette_flow::context::RunOptions;
use briquette_formats::{Checkpoint, Draft, draft};
use briquette_recipe::Recipe;
use briquette_recipe::paths::stages_beside;
use briquette_report::Report;
use parts::PartsRun;
use std::path::Path;
use std::time::Instant;
use steps::FoundSteps;
use training::distills;
pub(crate) use training::{asked_of_training, read_by_training};
use work::Work;
pub(crate) use work::discard;

/// What a batch knows of a job and a run by itself would have to find out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfBatch<'a> {
    /// What lies at every path that it reads.
    pub(crate) contents: &'a InputHashes,
    /// Where what comes up to its last training is kept for other jobs, where there are any.
    pub(crate) shared: Option<&'a Path>,
}

/// Runs every part of a recipe that trains or factorizes. The report counts the time from `started`.
pub(crate) fn run(
    recipe: &Recipe,
    options: &RunOptions,
    of_batch: Option<OfBatch>,
    started: Instant,
) -> Result<Report> {
    let original = crate::open::model(recipe)?;
    // Whatever can be known now should not be found out after hours of training.
    let student = student_of(recipe, &original)?;
    briquette_plan::plan_of(recipe, &original, student.as_deref(), &options.stop)?;
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
    // A run that was refused before any part took long leaves nothing that is worth keeping.
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
    contents: InputHashes,
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
        let Self { recipe, options, .. } = *self;
        let steps = FoundSteps::of(recipe, work, options)?;
        let parts = steps.as_ref().map_or(recipe, |found| &found.recipe);
        let mut run = PartsRun::of(parts, self.original, work, options, self.started)?;
        if let Some(found) = &steps {
            run.go_on_from(found.model.clone(), "budget".into())?;
        }
        let (model, origin) = run.run()?;
        let last = Recipe { model, parts: Vec::new(), ..recipe.clone() };
        let (draft, mut report) = match &steps {
            Some(found) => found.draft(&last, options, &origin)?,
            None => {
                let scratch = work.part(recipe.parts.len(), Work::SOLVED);
                compressed_draft(&last, options, &origin, Some(&scratch))?
            }
        };
        finish(&mut report, &origin, &draft)?;
        if !self.is_shared {
            published::note(work.directory(), &draft, recipe, &self.contents)?;
        }
        draft.publish()?;
        Ok(report)
    }
}
