//! One function for each command: options to library call to text.

use super::args::{Args, Command, Common, LayoutArg, RecipeCommand, SchemaOf, What};
use super::choice::ChoiceArgs;
use super::{allocator, batch, devices, evaluate, man, plan, progress, signals, tables, text};
use briquette::core::memory::MemoryMeter;
use briquette::core::printable::printable;
use briquette::formats::{contained, draft, limits};
use briquette::pipeline::batch::schema as jobs_schema;
use briquette::pipeline::recipe::{self, raw};
use briquette::pipeline::{Progress, Stop, diff, inspect, limit_threads, report, verify};
use briquette::{Error, Recipe, Report, Result, RunOptions};
use clap::CommandFactory;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs a command. Returns the exit code of a run that did what it was asked.
pub(super) fn run(args: &Args) -> Result<u8> {
    let common = &args.common;
    devices::check(&common.device)?;
    #[cfg(feature = "cuda")]
    if matches!(args.command, Command::Distill { .. } | Command::Run { .. }) {
        devices::default_to_what_is_here();
    }
    match &args.command {
        Command::Inspect { model, zeros, choice } => {
            let found = inspect::inspect(model, &choice.choice(), *zeros, &options(common, false)?)?;
            show_long(common, &found, |out| tables::inspection(out, &found))
        }
        Command::Plan { model, what } => plan::plan(common, model, what),
        Command::Compress { model, output, force, what } => {
            compress(common, &recipe_of(model.as_deref(), output.as_deref(), what)?, *force)
        }
        Command::Run { recipe, force, resume, shard } => batch::run(common, recipe, *force, *resume, shard.as_deref()),
        Command::Distill { recipe, model, output, devices, force, plain } => {
            distill(common, recipe, model.as_deref(), output.as_deref(), devices, [*force, *plain])
        }
        Command::Verify { output, against } => {
            let found = verify::verify(output, against.as_deref(), &options(common, false)?)?;
            show(common, &found, || Ok(verified_text(output, &found)))
        }
        Command::Diff { first, second, choice } => {
            let found = diff::diff(first, second, &choice.choice(), &options(common, false)?)?;
            show(common, &found, || Ok(tables::diff(&found)))
        }
        Command::Eval { model, what } => evaluate::eval(common, model, what),
        Command::Devices => devices::list(common),
        Command::Export { model, to, output, allow_untested, force, choice } => {
            export(common, [model, output], to, choice, [*allow_untested, *force])
        }
        Command::Report { output } => redraw(common, output),
        Command::Recipe { what: RecipeCommand::Schema { of } } => schema(*of),
        Command::Completions { shell } => completions(*shell),
        Command::Man => text::print(&man::page()?).map(|()| 0),
    }
}

/// A recipe without stages, which is a conversion.
fn export(
    common: &Common,
    [model, output]: [&PathBuf; 2],
    to: &str,
    choice: &ChoiceArgs,
    [allow_untested, force]: [bool; 2],
) -> Result<u8> {
    let mut raw = raw::RawRecipe {
        model: raw::RawModel { path: Some(model.clone()), allow_nonfinite: true, ..Default::default() },
        output: raw::RawOutput { path: Some(output.clone()), format: Some(to.to_string()), allow_untested },
        ..Default::default()
    };
    choice.over(&mut raw.model);
    compress(common, &Recipe::from_raw(raw, Path::new(""))?, force)
}

fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "briquette", &mut out);
    text::print(&String::from_utf8_lossy(&out)).map(|()| 0)
}

pub(super) fn options(common: &Common, force: bool) -> Result<RunOptions> {
    let stop = Stop::default();
    signals::listen(&stop).map_err(|error| Error::io("cannot listen for signals", Path::new("this process"), error))?;
    let (progress, meter): (Arc<dyn Progress>, Arc<dyn MemoryMeter>) = match &common.tracer {
        Some(trace) => (trace.clone(), trace.clone()),
        None => (progress_of(common), Arc::new(allocator::Allocated)),
    };
    if common.threads > 0 {
        limit_threads(common.threads)?;
    }
    let (threads, device) = (common.threads, common.device.clone());
    Ok(RunOptions { threads, force, progress, stop, device, meter, ..RunOptions::default() })
}

pub(super) fn progress_of(common: &Common) -> Arc<dyn Progress> {
    progress::of(common.quiet || common.json)
}

/// Prints JSON or text, or nothing.
pub(super) fn show<T: Serialize>(common: &Common, value: &T, to_text: impl FnOnce() -> Result<String>) -> Result<u8> {
    if common.json {
        text::print_json(value)?;
    } else if !common.quiet {
        text::print(&to_text()?)?;
    }
    Ok(0)
}

/// Prints JSON or text, or nothing, bit by bit: of every tensor of a model there may be much to say.
pub(super) fn show_long<T: Serialize>(
    common: &Common,
    value: &T,
    put_text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<u8> {
    if common.json {
        text::print_json(value)?;
    } else if !common.quiet {
        text::write(put_text)?;
    }
    Ok(0)
}

/// As [`show`], of findings that may be a failure all the same: as JSON, they say so.
pub(super) fn show_and_check<T: Serialize>(
    common: &Common,
    value: &T,
    to_text: impl FnOnce() -> Result<String>,
    check: Result<()>,
) -> Result<u8> {
    match &check {
        Err(error) if common.json => {
            let mut value = serde_json::to_value(value).map_err(|error| Error::bug(format!("JSON: {error}")))?;
            value["error"] = super::error_json(error);
            show(common, &value, to_text)?
        }
        _ => show(common, value, to_text)?,
    };
    check.map(|()| 0)
}

pub(super) fn compress(common: &Common, recipe: &Recipe, force: bool) -> Result<u8> {
    let report = briquette::run(recipe, &options(common, force)?)?;
    show(common, &report, || Ok(report_text(&report)))
}

/// Runs a recipe that trains; one that does not is a mistake.
fn distill(
    common: &Common,
    path: &Path,
    model: Option<&Path>,
    output: Option<&Path>,
    names: &[String],
    [force, is_plain]: [bool; 2],
) -> Result<u8> {
    let (mut raw, directory) = (recipe::read_raw(path)?, recipe::directory_of(path));
    if !raw.stage.iter().any(|stage| stage.kind == "distill") {
        let message = "it has no distill stage; add one, or use `briquette run`";
        return Err(Error::config(message).at(path.display()));
    }
    raw.model.path = model.map(absolute).transpose()?.or(raw.model.path.take());
    raw.output.path = output.map(absolute).transpose()?.or(raw.output.path.take());
    let mut options = options(common, force)?;
    options.screen = !is_plain && !common.quiet && !common.json && progress::has_screen();
    if let Some(first) = names.first() {
        if common.device != "auto" {
            return Err(Error::config("--devices: the device is named already; give --device or --devices"));
        }
        (options.device, options.devices) = (first.clone(), names.to_vec());
    }
    let report = briquette::run(&Recipe::from_raw(raw, &directory)?, &options)?;
    show(common, &report, || Ok(report_text(&report)))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| Error::io("cannot resolve", path, source))
}

fn report_text(report: &Report) -> String {
    report::terminal::to_terminal(report, text::width(), text::has_color())
}

fn verified_text(output: &Path, found: &verify::Verified) -> String {
    let original =
        if found.against_original { ", and every value is what the recipe makes of the original" } else { "" };
    format!(
        "{}: {} files and {} tensors are as they were written ({}){original}\n",
        printable(&output.display().to_string()),
        found.n_files,
        found.n_tensors,
        tables::bytes(found.n_bytes)
    )
}

/// The recipe that the flags stand for, or the one they name with its paths overridden.
pub(super) fn recipe_of(model: Option<&Path>, output: Option<&Path>, what: &What) -> Result<Recipe> {
    let (mut raw, directory) = match &what.recipe {
        Some(path) => (recipe::read_raw(path)?, recipe::directory_of(path)),
        None => (raw_of(what)?, PathBuf::new()),
    };
    let is_placeholder = |path: &&Path| *path == Path::new("-");
    if let Some(model) = model {
        raw.model.path = Some(if directory.as_os_str().is_empty() { model.to_path_buf() } else { absolute(model)? });
    }
    if let Some(output) = output.filter(|path| !(is_placeholder(path) && raw.output.path.is_some())) {
        raw.output.path = Some(if directory.as_os_str().is_empty() { output.to_path_buf() } else { absolute(output)? });
    }
    if raw.model.path.is_none() {
        return Err(Error::config("no MODEL: name a file, an index or a directory to compress"));
    }
    if raw.output.path.is_none() {
        return Err(Error::config("no output: name the directory to write with --output OUT"));
    }
    if what.format.is_some() {
        raw.output.format = what.format.clone();
    }
    if let Some(layout) = what.layout {
        raw.model.layout = Some(match layout {
            LayoutArg::Torch => raw::RawLayout::Torch,
            LayoutArg::Burn => raw::RawLayout::Burn,
        });
    }
    raw.model.allow_nonfinite |= what.allow_nonfinite;
    raw.output.allow_untested |= what.allow_untested;
    what.choice.over(&mut raw.model);
    Recipe::from_raw(raw, &directory).map_err(|error| match &what.recipe {
        Some(path) => recipe::locate(error, path),
        None => error,
    })
}

fn raw_of(what: &What) -> Result<raw::RawRecipe> {
    let layout = what.layout.map(|layout| match layout {
        LayoutArg::Torch => raw::RawLayout::Torch,
        LayoutArg::Burn => raw::RawLayout::Burn,
    });
    let model = raw::RawModel { layout, ..Default::default() };
    Ok(raw::RawRecipe { model, stage: stages_of(what)?, ..Default::default() })
}

fn stages_of(what: &What) -> Result<Vec<raw::RawStage>> {
    let include = (!what.include.is_empty()).then(|| what.include.clone());
    let stage = |kind: &str| raw::RawStage {
        kind: kind.into(),
        include: include.clone(),
        exclude: what.exclude.clone(),
        ..Default::default()
    };
    let mut stages = Vec::new();
    if what.prune.is_some() || what.prune_pattern.is_some() {
        stages.push(raw::RawStage {
            sparsity: what.prune,
            pattern: what.prune_pattern.clone(),
            scope: what.scope.clone(),
            method: what.prune_method.clone(),
            seed: what.seed,
            roles: what.prune_roles.clone(),
            ..stage("prune")
        });
    }
    if let Some(scheme) = &what.quantize {
        stages.push(raw::RawStage {
            scheme: Some(scheme.clone()),
            range: what.range.clone(),
            roles: what.quantize_roles.clone(),
            ..stage("quantize")
        });
    }
    if let Some(dtype) = &what.cast {
        stages.push(raw::RawStage { dtype: Some(dtype.clone()), ..stage("cast") });
    }
    if stages.is_empty() {
        return Err(Error::config("nothing to do: give --prune, --quantize, --cast or --recipe"));
    }
    Ok(stages)
}

fn redraw(common: &Common, output: &Path) -> Result<u8> {
    verify::check_ours(output)?;
    let path = output.join("report.json");
    let file = contained::open(output, Path::new("report.json"))?;
    let report: Report = briquette::formats::json::parse(&file.read_all(limits::MAX_OWN_BYTES)?, "the report", &path)?;
    draft::replace_file(&output.join("report.html"), report::html::to_html(&report).as_bytes())?;
    show(common, &report, || Ok(report_text(&report)))
}

fn schema(of: SchemaOf) -> Result<u8> {
    let schema = match of {
        SchemaOf::Recipe => recipe::schema(),
        SchemaOf::Jobs => jobs_schema(),
        SchemaOf::Report => report::schema(),
    };
    text::print_json(&schema).map(|()| 0)
}
