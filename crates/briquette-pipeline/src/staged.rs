//! Recipes that train, factorize, shrink or fold.
//!
//! Finished parts are stored beside the output, so that a killed run resumes.
//!
//! `OUT.stages/` has `recipe.json`, `blocks.json`, an output directory for each finished part (`1-compress`, `1-distill`,
//! `2-factorize`, ..) and the checkpoints of a running training. A directory of a part is always complete,
//! because it appears atomically. Jobs of a batch with the same training share such a directory.

mod kept;
mod parts;
mod published;
mod scales;
mod steps;
mod training;
mod work;

use crate::compress::{compressed_draft, finish};
use crate::contents::{InputHasher, InputHashes};
use crate::distill;
use crate::distill::student_of;
use crate::file_stages::inputs_of;
use crate::report::{Origin, Report};
use crate::unwritten::unwritten;
use briquette_core::{ErrorKind, Result};
use briquette_formats::{Checkpoint, Draft, draft, presence};
use briquette_recipe::Recipe;
use briquette_recipe::paths::stages_beside;
use briquette_writer::context::RunOptions;
use parts::PartsRun;
use std::path::Path;
use std::time::Instant;
use steps::FoundSteps;
pub(crate) use training::{read_by_training, training_keys};
use work::Work;
pub(crate) use work::discard;

/// Facts that a batch passes to a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfBatch<'a> {
    /// The contents of all paths that the job reads.
    pub(crate) contents: &'a InputHashes,
    /// The directory that this job shares with other jobs, up to its last training.
    pub(crate) shared: Option<&'a Path>,
}

/// Runs every part of a recipe that trains or factorizes. The report counts time from `started`.
pub(crate) fn run(
    recipe: &Recipe,
    options: &RunOptions,
    of_batch: Option<OfBatch>,
    started: Instant,
) -> Result<Report> {
    let original = crate::open::model(recipe)?;
    match begin(recipe, &original, options, of_batch, started).map_err(unwritten)? {
        ChainStart::Done(report) => Ok(*report),
        ChainStart::Parts(chain, work) => {
            let report = chain.run_parts(&work).map_err(|error| work.explain(error));
            chain.close(work, report)
        }
    }
}

/// The start of a run.
enum ChainStart<'a> {
    /// An earlier run made the output, and was killed during cleanup.
    Done(Box<Report>),
    /// The parts must run, in this directory.
    Parts(Chain<'a>, Work),
}

/// Runs all checks that are possible before any work, and locks the directory of the parts.
fn begin<'a>(
    recipe: &'a Recipe,
    original: &'a Checkpoint,
    options: &'a RunOptions,
    of_batch: Option<OfBatch>,
    started: Instant,
) -> Result<ChainStart<'a>> {
    let student = student_of(recipe, original)?;
    briquette_recipe::plan::plan_of(recipe, original, student.as_deref(), &options.stop)?;
    recipe.trainings().try_for_each(|stage| distill::check_devices(stage, &options.devices))?;
    draft::remove_left_behind(&recipe.output);
    let shared = of_batch.and_then(|of| of.shared);
    let directory = shared.map_or_else(|| stages_beside(&recipe.output), Path::to_path_buf);
    let check_output = || Draft::create(&recipe.output, &inputs_of(recipe, original), options.force).map(drop);
    let may_be_done = shared.is_none() && presence::exists(&directory.join(published::FILE))?;
    if !may_be_done {
        check_output()?;
    }
    let contents = match of_batch {
        Some(of) => of.contents.clone(),
        None => InputHasher::default().of_recipe(recipe, original, &options.stop)?,
    };
    let (is_of_batch, is_shared) = (of_batch.is_some(), shared.is_some());
    let chain = Chain { recipe, original, contents, options, is_of_batch, is_shared, started };
    if may_be_done {
        if let Some(report) = chain.finish(&directory)? {
            return Ok(ChainStart::Done(Box::new(report)));
        }
        check_output()?;
    }
    let work = Work::at(directory, recipe)?;
    work.begin(&training::identity(recipe, &chain.contents, options), options.force)?;
    if work.begin_blocks(recipe.parts.len(), &training::identity_of_blocks(recipe, &chain.contents))? {
        options.progress.line("the last stages or their inputs changed: the blocks that they had finished are removed");
    }
    Ok(ChainStart::Parts(chain, work))
}

/// A run of a recipe that trains or factorizes.
struct Chain<'a> {
    recipe: &'a Recipe,
    original: &'a Checkpoint,
    /// The contents of all paths that the run reads.
    contents: InputHashes,
    options: &'a RunOptions,
    /// Whether the run is a job of a batch.
    is_of_batch: bool,
    /// Whether other jobs use the same parts.
    is_shared: bool,
    started: Instant,
}

impl Chain<'_> {
    /// Finishes the cleanup of an earlier run that had made the output, and returns its report.
    fn finish(&self, directory: &Path) -> Result<Option<Report>> {
        let work = Work::at(directory.to_path_buf(), self.recipe)?;
        let report = published::finished(work.directory(), self.recipe, &self.contents, self.options)?;
        if report.is_some() {
            work.discard(&self.recipe.output);
            self.options.progress.line("the output is complete: an earlier run of this recipe ended during cleanup");
        }
        Ok(report)
    }

    /// Removes the directory of the parts if it has no work. Otherwise adds to a resumable error what the
    /// directory has.
    fn close(&self, work: Work, report: Result<Report>) -> Result<Report> {
        let (directory, kept) = (work.directory().to_path_buf(), kept::words(work.directory()));
        let is_done = match report.as_ref().map_err(|error| error.kind) {
            Ok(_) => !self.is_shared,
            // A run that was refused before a long part leaves nothing of value.
            Err(ErrorKind::Refused) => !work.holds_parts(),
            Err(ErrorKind::Interrupted(_)) => kept.is_none() && !self.is_shared,
            Err(_) => false,
        };
        if is_done {
            let beside = if self.is_shared { directory.clone() } else { self.recipe.output.clone() };
            work.discard(&beside);
        }
        report.map_err(|error| match &kept {
            Some(kept) => kept::explain(error, kept, &directory, self.is_of_batch),
            None => unwritten(error),
        })
    }

    /// Runs every part, then the last stages. Finished parts are reused.
    fn run_parts(&self, work: &Work) -> Result<Report> {
        let Self { recipe, options, .. } = *self;
        let steps = FoundSteps::of(recipe, work, options)?;
        let parts = steps.as_ref().map_or(recipe, |found| &found.recipe);
        let mut run = PartsRun::of(parts, self.original, work, options, self.started)?;
        if let Some(found) = &steps {
            run.continue_from(found.model.clone(), "budget".into())?;
        }
        let (model, mut origin) = run.run()?;
        let last = Recipe { model, parts: Vec::new(), scales: None, ..recipe.clone() };
        let scratch = work.part(recipe.parts.len(), Work::SOLVED);
        let draft = |last: &Recipe, origin: &Origin| match &steps {
            Some(found) => found.draft(last, options, origin, &scratch),
            None => compressed_draft(last, options, origin, Some(&scratch)),
        };
        let (draft, mut report) = match &recipe.scales {
            Some(stage) => scales::draft(stage, (recipe, last), (work, options), &mut origin, draft)?,
            None => draft(&last, &origin)?,
        };
        finish(&mut report, &origin, &draft)?;
        if !self.is_shared {
            published::note(work.directory(), &draft, recipe, &self.contents)?;
        }
        draft.publish()?;
        Ok(report)
    }
}
