//! One function for each command, from options to a library call to text.

use super::args::{Args, Command, RecipeCommand, SchemaOf};
use super::asked::{absolute, recipe_of};
use super::choice::ReadArgs;
use super::common::Common;
use super::compress::{compress, report_text};
use super::in_flags::in_flags;
use super::options::options;
use super::show::{show, show_long};
use super::stage_flags::What;
use super::{
    batch, calibrate, devices, evaluate, generate, graph, man, onnx, plan, progress, sensitivity, tables,
    tensor_tables, text,
};
use briquette::core::printable::printable;
use briquette::formats::{contained, draft, limits};
use briquette::pipeline::batch::schema as jobs_schema;
use briquette::pipeline::recipe::{self, raw};
use briquette::pipeline::{diff, inspect, report, verify};
use briquette::{Error, Recipe, Report, Result};
use clap::CommandFactory;
use std::path::Path;

/// Runs a command. Returns the exit code if there was no error.
pub(super) fn run(args: &Args) -> Result<u8> {
    let common = &args.common;
    devices::check(&common.device)?;
    #[cfg(feature = "cuda")]
    if matches!(args.command, Command::Distill { .. } | Command::Run { .. }) {
        devices::default_to_what_is_here();
    }
    match &args.command {
        Command::Inspect { model, zeros, all, read } => {
            let found = inspect::inspect(model, &read.choice(), *zeros, &options(common, false)?)?;
            show_long(common, &found, |out| tensor_tables::inspection(out, &found, *all))
        }
        Command::Graph { model, what } => graph::graph(common, model, what),
        Command::Plan { model, all, what } => {
            let is_recipe = plan::is_recipe(model);
            plan::plan(common, model, what, *all).map_err(|error| if is_recipe { error } else { in_flags(error, what) })
        }
        Command::Compress { model, output, force, what } => {
            let recipe = recipe_of(model.as_deref(), output.as_deref(), what)?;
            compress(common, &recipe, *force).map_err(|error| in_flags(error, what))
        }
        Command::Run { recipe, force, resume, shard } => batch::run(common, recipe, *force, *resume, shard.as_deref()),
        Command::Distill { recipe, model, output, devices, force, plain } => {
            distill(common, recipe, model.as_deref(), output.as_deref(), devices, [*force, *plain])
        }
        Command::Verify { output, against } => {
            if onnx::is_onnx_output(output)? {
                return onnx::verify(common, output, against.is_some());
            }
            let found = verify::verify(output, against.as_deref(), &options(common, false)?)?;
            show(common, &found, || Ok(verified_text(output, &found)))
        }
        Command::Diff { first, second, all, choice } => {
            let found = diff::diff(first, second, &choice.choice(), &options(common, false)?)?;
            show_long(common, &found, |out| tensor_tables::diff(out, &found, *all))
        }
        Command::Eval { model, what } => evaluate::eval(common, model, what),
        Command::Generate { model, what } => generate::generate(common, model, what),
        Command::Calibrate { model, what } => calibrate::calibrate(common, model, what),
        Command::Sensitivity { model, what } => {
            sensitivity::sensitivity(common, model, what).map_err(|error| in_flags(error, &What::default()))
        }
        Command::Sweep { model, sweep, what } => {
            batch::sweep(common, model, sweep, what).map_err(|error| in_flags(error, what))
        }
        Command::Devices => devices::list(common),
        Command::Export { model, to, storage, onnx, output, allow_untested, force, read }
            if onnx::is_written_as_graph(to, model, read, onnx)? =>
        {
            onnx::refuse_others(storage.as_deref(), *allow_untested)?;
            onnx::export(common, model, output, onnx, read, *force)
        }
        Command::Export { model, to, storage, onnx, output, allow_untested, force, read } => {
            onnx.refuse()?;
            let output = raw::RawOutput {
                path: Some(output.clone()),
                format: Some(to.clone()),
                storage: storage.clone(),
                allow_untested: *allow_untested,
            };
            let flags =
                |message: String| message.replace("output.format", "--to").replace("output.storage", "--storage");
            let exported = export(common, model, output, read, *force);
            exported.map_err(|error| Error { message: flags(error.message), ..error })
        }
        Command::Report { output } => redraw(common, output),
        Command::Recipe { what: RecipeCommand::Schema { of } } => schema(*of),
        Command::Completions { shell } => completions(*shell),
        Command::Man => text::print(&man::page()?).map(|()| 0),
    }
}

/// Converts a model: runs a recipe without stages.
fn export(common: &Common, model: &Path, output: raw::RawOutput, read: &ReadArgs, force: bool) -> Result<u8> {
    let mut raw = raw::RawRecipe {
        model: raw::RawModel { path: Some(model.to_path_buf()), allow_nonfinite: true, ..Default::default() },
        output,
        ..Default::default()
    };
    read.over(&mut raw.model);
    compress(common, &Recipe::from_raw(raw, Path::new(""))?, force)
}

fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "briquette", &mut out);
    text::print(&String::from_utf8_lossy(&out)).map(|()| 0)
}

/// Runs a recipe with a distill stage; refuses other recipes.
fn distill(
    common: &Common,
    path: &Path,
    model: Option<&Path>,
    output: Option<&Path>,
    names: &[String],
    [force, is_plain]: [bool; 2],
) -> Result<u8> {
    let (mut raw, directory) = (recipe::read_raw(path)?, recipe::directory_of(path));
    if !raw.has(recipe::StageKind::Distill) {
        let message = "has no distill stage; add one, or use `briquette run`";
        return Err(Error::config(message).at(path.display()));
    }
    raw.model.path = model.map(absolute).transpose()?.or(raw.model.path.take());
    raw.output.path = output.map(absolute).transpose()?.or(raw.output.path.take());
    let mut options = options(common, force)?;
    options.screen = !is_plain && !common.quiet && !common.json && progress::has_screen();
    if let Some(first) = names.first() {
        if common.device != "auto" {
            return Err(Error::config("--devices: found --device too; remove one of the two"));
        }
        (options.device, options.devices) = (first.clone(), names.to_vec());
    }
    let report = briquette::run(&Recipe::from_raw(raw, &directory)?, &options)?;
    show(common, &report, || Ok(report_text(&report)))
}

fn verified_text(output: &Path, found: &verify::Verified) -> String {
    let original =
        if found.against_original { ", and every value equals the recipe's result on the original" } else { "" };
    format!(
        "{}: {} files and {} tensors are unchanged ({}){original}\n",
        printable(&output.display().to_string()),
        found.n_files,
        found.n_tensors,
        tables::bytes(found.n_bytes)
    )
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
        SchemaOf::Graph => report::graph::schema(),
    };
    text::print_json(&schema).map(|()| 0)
}
