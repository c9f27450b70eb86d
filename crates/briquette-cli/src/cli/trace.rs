//! `--trace`: records what a command did. The file is checked before the command and written after it.

use super::args::{Args, Command, EvalArgs};
use super::options::progress_of;
use super::{allocator, commands};
use briquette::formats::draft::OwnFile;
use briquette::pipeline::Trace;
use briquette::pipeline::batch::{self, Document};
use briquette::pipeline::recipe::{directory_of, paths, read_raw};
use briquette::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs a command and writes its trace, even if the command failed.
pub(super) fn run(args: &mut Args) -> Result<u8> {
    let Some(path) = args.common.trace.clone() else { return commands::run(args) };
    let at = |error: Error| error.at("--trace");
    let file = OwnFile::at(&path, "trace", Trace::BEGINNING, &touched(&args.command)).map_err(at)?;
    let trace = Arc::new(Trace::new(progress_of(&args.common), Arc::new(allocator::Allocated)));
    args.common.tracer = Some(trace.clone());
    let outcome = commands::run(args);
    let written = trace.to_json().and_then(|json| file.write(&json).map_err(at));
    outcome.and_then(|code| written.map(|()| code))
}

/// Returns the paths that a command reads and writes, according to its arguments and recipes.
fn touched(command: &Command) -> Vec<PathBuf> {
    let mut paths: Vec<&Path> = Vec::new();
    let mut of_recipe = None;
    match command {
        Command::Inspect { model, .. } => paths.push(model),
        Command::Graph { model, what } => paths.extend(std::iter::once(model.as_path()).chain(what.page())),
        Command::Plan { model, what, .. } => {
            paths.push(model);
            paths.extend(what.paths());
            of_recipe = what.recipe.as_deref().or(Some(model).filter(|path| is_toml(path)).map(PathBuf::as_path));
        }
        Command::Compress { model, output, what, .. } => {
            paths.extend([model, output].into_iter().flatten().map(PathBuf::as_path).chain(what.paths()));
            of_recipe = what.recipe.as_deref();
        }
        Command::Sweep { model, sweep, what } => {
            paths.extend([model, &sweep.output].map(PathBuf::as_path));
            paths.extend(sweep.also.iter().map(PathBuf::as_path).chain(what.paths()));
            of_recipe = what.recipe.as_deref();
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
        Command::Calibrate { model, what } => paths.extend([model, &what.data, &what.output].map(PathBuf::as_path)),
        Command::Generate { model, what } => {
            paths.push(model);
            paths.extend(what.paths());
        }
        Command::Sensitivity { model, what } => {
            paths.push(model);
            paths.extend(what.paths());
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
    named.chain(output.map(paths::stages_beside)).chain(of_recipe.map(of_document).unwrap_or_default()).collect()
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Returns a recipe or a jobs file, and its paths. A file that cannot be read has none, and the command will
/// fail.
fn of_document(path: &Path) -> Vec<PathBuf> {
    let mut named = match (read_raw(path), Document::from_file(path)) {
        (Ok(raw), _) => paths::touched(&raw, &directory_of(path)),
        (_, Ok(Document::Jobs(jobs))) => batch::touched(&jobs),
        _ => Vec::new(),
    };
    named.push(path.to_path_buf());
    named
}
