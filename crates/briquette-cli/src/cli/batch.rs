//! Runs and plans jobs files.

use super::asked::raw_recipe_of;
use super::common::Common;
use super::compress::compress;
use super::options::options;
use super::show::show;
use super::stage_flags::What;
use super::tables::{bytes, table};
use super::text;
use super::values::n_points;
use briquette::core::printable::printable;
use briquette::core::shown_path;
use briquette::pipeline::batch::{self, BatchOptions, Document, JobPlan, Jobs, Shard};
use briquette::pipeline::report::metrics::value_text;
use briquette::pipeline::report::numbers::seconds;
use briquette::pipeline::report::{BatchReport, JobResult, JobStatus};
use briquette::pipeline::sweep::{self, SweepRequest};
use briquette::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};

/// The sizes of a sweep and its outputs.
#[derive(Debug, Clone, Args)]
pub(crate) struct SweepArgs {
    /// The directory of all outputs
    #[arg(long, short, value_name = "OUT", help_heading = "Output")]
    pub(crate) output: PathBuf,
    /// Number of sizes in a range, including both ends
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = n_points(), help_heading = "Budget")]
    pub(crate) points: usize,
    /// Another output to show in the report; can be repeated
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) also: Vec<PathBuf>,
    /// Replace existing outputs that briquette wrote
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
    /// Skip finished, unchanged sizes
    #[arg(long, help_heading = "Jobs")]
    pub(crate) resume: bool,
    /// Run every N-th size from the I-th (I/N, from 0), or auto or auto/N
    #[arg(long, value_name = "I/N", help_heading = "Jobs")]
    pub(crate) shard: Option<String>,
}

/// Runs a recipe, or the jobs of a file.
pub(super) fn run(common: &Common, path: &Path, force: bool, resume: bool, shard: Option<&str>) -> Result<u8> {
    let jobs = match Document::from_file(path)? {
        Document::Jobs(jobs) => jobs,
        Document::Recipe(_) if resume || shard.is_some() => {
            let flag = if resume { "--resume" } else { "--shard" };
            let message = "is for jobs files, but this is a recipe; remove it, or use --force to run the recipe again";
            return Err(Error::config(message).at(flag));
        }
        Document::Recipe(recipe) => return compress(common, &recipe, force),
    };
    let report = batch::run(&jobs, &how(resume, shard)?, &options(common, force)?, &mut complain)?;
    show(common, &report, || Ok(report_text(&report)))?;
    Ok(report.status().exit_code())
}

fn how(resume: bool, shard: Option<&str>) -> Result<BatchOptions> {
    let shard = shard.map(|text| Shard::parse(text, |name| std::env::var(name).ok())).transpose()?;
    Ok(BatchOptions { resume, shard: shard.unwrap_or_default() })
}

/// Runs a budget at several sizes.
pub(super) fn sweep(common: &Common, model: &Path, asked: &SweepArgs, what: &What) -> Result<u8> {
    let (recipe, directory) = raw_recipe_of(Some(model), Some(&asked.output), what)?;
    let (output, also) = (asked.output.clone(), asked.also.clone());
    let request = SweepRequest { recipe, directory, output, n_points: asked.points, also };
    let how = how(asked.resume, asked.shard.as_deref())?;
    let report = sweep::sweep(&request, &how, &options(common, asked.force)?, &mut complain)?;
    show(common, &report, || Ok(report_text(&report)))?;
    Ok(report.status().exit_code())
}

/// Reports a failed job at once.
fn complain(result: &JobResult) {
    complain_of(&result.job, result.error.as_deref());
}

fn complain_of(job: &str, error: Option<&str>) {
    if let Some(error) = error {
        text::complain(&format!("error: job {job:?}: {error}"));
    }
}

fn report_text(report: &BatchReport) -> String {
    let metrics = report.metrics();
    let rows: Vec<Vec<String>> = report.jobs.iter().map(|result| row(result, &metrics)).collect();
    let shard = report.shard.as_ref().map_or(String::new(), |shard| format!(" (shard {shard})"));
    let mut headings = vec!["job", "status", "before", "after", "ratio"];
    headings.extend(&metrics);
    headings.extend(["seconds", "output or error"]);
    format!(
        "{}{}\n{} done, {} skipped, {} failed{shard} in {}; page: {}; journal: {}\n",
        result_text(report),
        table(&headings, &rows),
        report.n_done,
        report.n_skipped,
        report.n_failed,
        seconds(report.seconds),
        printable(&shown_path(&report.page)),
        printable(&shown_path(&report.journal))
    )
}

/// Returns the first line: sizes and quality of all outputs.
fn result_text(report: &BatchReport) -> String {
    let Some(sizes) = report.sizes_text() else { return String::new() };
    let quality = report.quality_text();
    let gap = if quality.is_empty() { "" } else { "; " };
    format!("{sizes}{gap}{}\n\n", printable(&quality))
}

fn row(result: &JobResult, metrics: &[&str]) -> Vec<String> {
    let status = match result.status {
        JobStatus::Done => "done",
        JobStatus::Skipped => "skipped",
        JobStatus::Failed => "failed",
    };
    let redone = result.redone.as_ref().map_or(String::new(), |why| format!(" (run again: {why})"));
    let trained = result.trained_with.as_ref().map_or(String::new(), |job| format!(" (trained once for {job})"));
    let note = result.note.as_ref().map_or(String::new(), |note| format!(" ({})", note.trim_end_matches('.')));
    let outcome = match &result.error {
        Some(error) => error.clone(),
        None => format!("{}{redone}{trained}{note}", path_or_none(result.output.as_deref())),
    };
    let mut row = vec![
        result.job.clone(),
        status.into(),
        bytes_or_none(result.before_bytes),
        bytes_or_none(result.after_bytes),
        result.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x")),
    ];
    let value = |name: &&str| result.metrics.get(*name).copied().flatten().map_or("-".into(), value_text);
    row.extend(metrics.iter().map(value));
    row.extend([format!("{:.2}", result.seconds), outcome]);
    row
}

fn path_or_none(path: Option<&Path>) -> String {
    path.map_or("-".into(), shown_path)
}

fn bytes_or_none(n: Option<u64>) -> String {
    n.map_or("-".into(), bytes)
}

/// Prints the plan of each job. Returns exit code 3 if a job would fail.
pub(super) fn plan(common: &Common, jobs: &Jobs) -> Result<u8> {
    let plans = batch::plan(jobs, &common.device)?;
    let rows = || plans.iter().map(plan_row).collect::<Vec<_>>();
    show(common, &plans, || Ok(table(&["job", "now", "predicted", "output or error"], &rows())))?;
    for plan in &plans {
        complain_of(&plan.job, plan.error.as_deref());
    }
    Ok(if plans.iter().any(|plan| plan.error.is_some()) { 3 } else { 0 })
}

fn plan_row(plan: &JobPlan) -> Vec<String> {
    let bound = if plan.is_exact { "" } else { " at most" };
    let output = path_or_none(plan.output.as_deref());
    let waits = plan.waits_for.as_ref().map(|maker| format!("{output} (waits for job {maker:?})"));
    vec![
        plan.job.clone(),
        bytes_or_none(plan.before_bytes),
        plan.predicted_bytes.map_or("-".into(), |n| format!("{}{bound}", bytes(n))),
        plan.error.clone().or(waits).unwrap_or(output),
    ]
}
