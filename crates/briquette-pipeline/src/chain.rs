//! Recipes that train or factorize: what comes before the last stages is kept beside the output until all is done, so that a run that
//! was killed goes on where it stood.
//!
//! `OUT.stages/` holds `recipe.json`, an output directory for each finished part (`1-compress`, `1-distill`, `2-factorize`, ..) and, while
//! one trains, its checkpoints. A part that is there is whole: directories appear in one step.

mod work;

use crate::context::RunOptions;
use crate::distill::{self, Asked, DistillReport};
use crate::factorize::{self, FactorReport};
use crate::inspect;
use crate::plan::Plan;
use crate::recipe::{DistillStage, FactorizeStage, Part, Recipe, Selection, Stage, Whole};
use crate::report::{Footprint, Report, StageBytes};
use crate::run::{Origin, inputs_of, run_stages};
use briquette_core::{ErrorKind, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, Profile, TensorSource, json, limits};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use work::{Work, check_is_ours};

/// Runs every part of a recipe that trains or factorizes.
pub(crate) fn run(recipe: &Recipe, options: &RunOptions) -> Result<Report> {
    let original = recipe.open_model()?;
    // Whatever can be known now should not be found out after hours of training.
    Plan::new(recipe, &original, &options.stop)?;
    distills(recipe).try_for_each(|stage| distill::check_devices(stage, &options.devices))?;
    distills(recipe).try_for_each(|stage| check_data(stage.data.train.as_deref()))?;
    drop(Draft::create(&recipe.output, &inputs_of(recipe, &original), options.force)?);
    let work = Work::open(recipe, &original, options)?;
    let report = run_parts(recipe, &original, &work, options);
    // What was refused before anything was learned is not gone on with.
    let is_done = match &report {
        Ok(_) => true,
        Err(error) => error.kind == ErrorKind::Refused && !work.holds_parts(),
    };
    // What is not ours stays.
    if is_done && check_is_ours(work.directory()).is_ok() {
        let _ = std::fs::remove_dir_all(work.directory());
    }
    report
}

/// Every part, then the last stages. What is finished already is taken as it is.
fn run_parts(recipe: &Recipe, original: &Checkpoint, work: &Work, options: &RunOptions) -> Result<Report> {
    let notes = inspect::notes_of(original);
    let mut origin = Origin { before: Some(footprint(original)), notes, ..Origin::of(recipe) };
    origin.bytes.push(StageBytes { stage: "original".into(), file_bytes: original.weight_bytes() });
    let mut model = recipe.model.clone();
    let mut pruned: Vec<&Selection> = Vec::new();
    for (index, part) in recipe.parts.iter().enumerate() {
        model = work.compress(index, part, recipe, &model, options, &mut origin)?;
        pruned.extend(part.stages.iter().filter_map(prune_selection));
        let kind = match &part.then {
            Whole::Distill(stage) => {
                origin.trained.push(work.distill(index, stage, recipe, &model, &pruned, options)?);
                pruned.extend(stage.gradual.as_ref().map(|gradual| &gradual.selection));
                origin.metrics = Some(work.checkpoints(index).join("metrics.jsonl"));
                "distill"
            }
            Whole::Factorize(stage) => {
                origin.factorized.extend(work.factorize(index, stage, recipe, &model, options)?);
                "factorize"
            }
        };
        model = work.part(index, kind);
        push_bytes(&mut origin, format!("{kind} {}", index + 1), &model)?;
    }
    let last = Recipe { model, parts: Vec::new(), ..recipe.clone() };
    run_stages(&last, options, &origin)
}

/// The stages that train.
fn distills(recipe: &Recipe) -> impl Iterator<Item = &DistillStage> {
    recipe.parts.iter().filter_map(|part| part.then.as_distill())
}

/// Refuses data that is not there.
fn check_data(path: Option<&Path>) -> Result<()> {
    match path.filter(|path| !path.is_dir()) {
        Some(path) => InputFile::open(path).map(drop),
        None => Ok(()),
    }
}

fn prune_selection(stage: &Stage) -> Option<&Selection> {
    match stage {
        Stage::Prune(stage) => Some(&stage.selection),
        Stage::Quantize(_) | Stage::Cast(_) => None,
    }
}

fn footprint(checkpoint: &Checkpoint) -> Footprint {
    let tensors = checkpoint.tensors().iter();
    Footprint {
        file_bytes: checkpoint.weight_bytes(),
        tensor_bytes: tensors.clone().map(|info| info.n_bytes() as u64).sum(),
        n_elements: tensors.map(|info| info.n_elements() as u64).sum(),
        n_zeros: None,
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
        part: &Part,
        recipe: &Recipe,
        model: &Path,
        options: &RunOptions,
        origin: &mut Origin,
    ) -> Result<PathBuf> {
        if part.stages.is_empty() {
            return Ok(model.to_path_buf());
        }
        let output = self.part(index, "compress");
        if !output.exists() {
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
        push_bytes(origin, format!("compress {}", index + 1), &output)?;
        Ok(output)
    }

    /// One training.
    fn distill(
        &self,
        index: usize,
        stage: &DistillStage,
        recipe: &Recipe,
        model: &Path,
        pruned: &[&Selection],
        options: &RunOptions,
    ) -> Result<DistillReport> {
        let (output, work) = (self.part(index, "distill"), self.checkpoints(index));
        let asked =
            Asked { stage, pruned, roles: &recipe.roles, original: &recipe.model, model, output: &output, work: &work };
        if !output.exists() {
            distill::train(&asked, options)?;
        }
        read_report(&output.join(distill::REPORT))
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
        if !output.exists() {
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
