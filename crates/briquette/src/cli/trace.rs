//! `--trace`: what a command did, written down at the end, at a place that was looked at before it began.

use super::args::{Args, Command, EvalArgs, What};
use super::{allocator, commands};
use briquette::formats::draft::OwnFile;
use briquette::pipeline::Trace;
use briquette::pipeline::batch::Document;
use briquette::pipeline::recipe::{directory_of, raw::RawRecipe, read_raw};
use briquette::{Error, Recipe, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs a command and writes down what it did where `--trace` says, also where it failed.
pub(super) fn run(args: &mut Args) -> Result<u8> {
    let Some(path) = args.common.trace.clone() else { return commands::run(args) };
    let at = |error: Error| error.at("--trace");
    let file = OwnFile::at(&path, "trace", Trace::BEGINNING, &touched(&args.command)).map_err(at)?;
    let trace = Arc::new(Trace::new(commands::progress_of(&args.common), Arc::new(allocator::Allocated)));
    args.common.tracer = Some(trace.clone());
    let outcome = commands::run(args);
    let written = trace.to_json().and_then(|json| file.write(&json).map_err(at));
    outcome.and_then(|code| written.map(|()| code))
}

/// What a command reads and writes, as far as its arguments and recipes say.
fn touched(command: &Command) -> Vec<PathBuf> {
    let mut paths: Vec<&Path> = Vec::new();
    let mut of_recipe = None;
    match command {
        Command::Inspect { model, .. } => paths.push(model),
        Command::Plan { model, what } => {
            paths.push(model);
            of_recipe = what.recipe.as_deref().or(Some(model).filter(|path| is_toml(path)).map(PathBuf::as_path));
        }
        Command::Compress { model, output, what: What { recipe, .. }, .. } => {
            paths.extend([model, output].into_iter().flatten().map(PathBuf::as_path));
            of_recipe = recipe.as_deref();
        }
        Command::Run { recipe, .. } => of_recipe = Some(recipe),
        Command::Distill { recipe, model, output, .. } => {
            paths.extend([model, output].into_iter().flatten().map(PathBuf::as_path));
            of_recipe = Some(recipe);
        }
        Command::Verify { output, against } => {
            paths.push(output);
            paths.extend(against.as_deref());
        }
        Command::Diff { first, second, .. } => paths.extend([first, second].map(PathBuf::as_path)),
        Command::Eval { model, what: EvalArgs { recipe, data, labels, against, .. } } => {
            let named = [data, labels, against].into_iter().flatten();
            paths.extend(named.chain([model]).map(PathBuf::as_path));
            of_recipe = recipe.as_deref();
        }
        Command::Export { model, output, .. } => paths.extend([model, output].map(PathBuf::as_path)),
        Command::Report { output } => paths.push(output),
        Command::Devices | Command::Recipe { .. } | Command::Completions { .. } | Command::Man => {}
    }
    let output = match command {
        Command::Distill { output, .. } | Command::Compress { output, .. } => output.as_deref(),
        _ => None,
    };
    let named = paths.into_iter().map(Path::to_path_buf);
    named.chain(output.and_then(stages_of)).chain(of_recipe.map(of_document).unwrap_or_default()).collect()
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// A recipe or a jobs file, and what it names. One that cannot be read names nothing, and nothing will be done.
fn of_document(path: &Path) -> Vec<PathBuf> {
    let mut named = match (read_raw(path), Document::from_file(path)) {
        (Ok(raw), _) => of_raw(&raw, &directory_of(path)),
        (_, Ok(Document::Jobs(jobs))) => {
            jobs.jobs.iter().filter_map(|job| job.recipe().ok()).flat_map(of_job).collect()
        }
        _ => Vec::new(),
    };
    named.push(path.to_path_buf());
    named
}

/// What a recipe names.
fn of_raw(raw: &RawRecipe, directory: &Path) -> Vec<PathBuf> {
    let data = raw.data.clone().unwrap_or_default();
    let teachers = raw.stage.iter().filter_map(|stage| stage.teacher.clone());
    let named = [raw.model.path.clone(), raw.output.path.clone(), data.train, data.eval, data.labels];
    let stages = raw.output.path.as_deref().and_then(stages_of);
    named.into_iter().flatten().chain(teachers).chain(stages).map(|path| directory.join(path)).collect()
}

/// What a job names, whose recipe may lie elsewhere.
fn of_job(recipe: &Recipe) -> Vec<PathBuf> {
    let trainings = recipe.parts.iter().filter_map(|part| part.then.as_distill());
    let evaluated = recipe.evaluate.iter().map(|asked| &asked.data);
    let data = trainings.clone().map(|stage| &stage.data).chain(evaluated);
    let of_data = data.flat_map(|data| [data.train.clone(), data.eval.clone(), data.labels.clone()]).flatten();
    let teachers = trainings.filter_map(|stage| stage.teacher.clone());
    let named = [recipe.model.clone(), recipe.output.clone()].into_iter().chain(stages_of(&recipe.output));
    named.chain(of_data).chain(teachers).collect()
}

/// Where the finished parts of a training are kept.
fn stages_of(output: &Path) -> Option<PathBuf> {
    let name = output.file_name()?.to_string_lossy().into_owned();
    Some(output.with_file_name(format!("{name}.stages")))
}
