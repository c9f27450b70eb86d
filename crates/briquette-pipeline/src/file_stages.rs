//! The file stages of a recipe: plan, survey, lay out, encode, verify, evaluate, report, publish.

mod small_files;

use crate::activation_grids;
use crate::bias_correction;
use crate::column_scales;
use crate::evaluate::evaluate;
use crate::frequency::{self, ScaledSource};
use crate::memory::{limit_of_host, workers_within};
use crate::report::{self as report, EvaluationReport, Evidence, Origin, Report, Timing};
use crate::solve::{self, SolveJob};
use crate::trained_scales;
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::{ActivationGrids, Checkpoint, Draft, TensorSource, presence, sums};
use briquette_recipe::Recipe;
use briquette_writer::plan::Prediction;
use briquette_writer::write::Written;
use briquette_writer::{self as flow, Plan, RunOptions, Workers, WriteJob};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// The allowed size of weight files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeRange {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl SizeRange {
    /// A size range that nothing satisfies: used for a dry run.
    pub(crate) const NEVER: Self = Self { least: u64::MAX, most: 0 };
}

/// A draft, or the reason why there is none.
pub(crate) enum Drafted {
    /// An output whose size is within the range.
    Done(Draft, Box<Report>),
    /// An output whose size is outside the range.
    Missed(Miss),
}

/// The size and errors of a draft outside the wanted range.
pub(crate) struct Miss {
    /// The size of its weight files in bytes.
    pub(crate) n_bytes: u64,
    /// The share of each layer's output error that remained after weight updates, by name.
    pub(crate) left: BTreeMap<String, f64>,
}

/// Makes the output of the file stages, verified but not published. All step sizes must be known.
///
/// If the size of the weight files is not wanted, the draft is dropped before its evaluation. If stages need
/// layer inputs or update weights, the results of each block are stored in `scratch` until the run is finished.
pub(crate) fn draft_of_size(
    recipe: &Recipe,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
    wanted: Option<SizeRange>,
) -> Result<Drafted> {
    let started = Instant::now();
    let limit = limit_of_host(recipe.memory_limit, options);
    let asked = recipe;
    let recipe = &*match scratch.filter(|_| recipe.calibration.is_some()) {
        Some(scratch) => solve::calibrated(recipe, scratch, options)?,
        None => Cow::Borrowed(recipe),
    };
    let checkpoint = crate::open::model(recipe)?;
    release_freed(&checkpoint, options);
    let workers = Workers::new(options)?;
    let mut plan = briquette_recipe::plan::plan(recipe, &checkpoint, &options.stop)?;
    let workers = workers_within(limit.as_ref(), &mut plan, &checkpoint, workers, options)?;
    solve::shares(recipe, &mut plan, &checkpoint, scratch, &workers)?;
    let mut scaled = frequency::scaled(recipe, &mut plan, &checkpoint, origin.rounded.as_deref(), &workers)?;
    column_scales::choose(recipe, &mut plan, &checkpoint, scratch, &mut scaled, &workers)?;
    let grids = activation_grids::choose(asked, &mut plan, (&checkpoint, &scaled), options)?;
    let mut prediction = plan.predict()?;
    if let Some(SizeRange { most, .. }) = wanted {
        prediction.n_bytes = prediction.n_bytes.min(most);
    }
    let draft = start(recipe, &checkpoint, prediction, options)?;
    let (checkpoint, scaled, workers, grids) = (&checkpoint, &scaled, &workers, grids.as_ref());
    let begun =
        Begun { recipe, origin, checkpoint, scaled, grids, prediction, scratch, workers, started, wanted, limit };
    let filled = fill(&draft, plan, &begun, options).map_err(|error| draft.explain(error))?;
    Ok(match filled {
        Ok(report) => Drafted::Done(draft, Box::new(report)),
        Err(miss) => Drafted::Missed(miss),
    })
}

/// The state when a draft is started.
struct Begun<'a> {
    recipe: &'a Recipe,
    origin: &'a Origin,
    checkpoint: &'a Checkpoint,
    scaled: &'a ScaledSource<'a>,
    grids: Option<&'a ActivationGrids>,
    prediction: Prediction,
    scratch: Option<&'a Path>,
    workers: &'a Workers,
    started: Instant,
    wanted: Option<SizeRange>,
    limit: Option<MemoryLimit<'a>>,
}

/// Fills a draft, verifies and evaluates it, and returns its report. A draft of an unwanted size is a [`Miss`].
///
/// The report is not yet part of the draft.
fn fill(draft: &Draft, plan: Plan, begun: &Begun, options: &RunOptions) -> Result<std::result::Result<Report, Miss>> {
    let Begun { recipe, origin, checkpoint, scaled, prediction, scratch, workers, started, wanted, limit, .. } = *begun;
    let mut timing = Timing::default();
    timing.mark("plan", started);

    let mut plan = plan;
    let since = Instant::now();
    let is_requested = solve::is_requested(recipe);
    if is_requested && scratch.is_none() {
        return Err(Error::bug("weights are to be updated, but their results have no directory"));
    }
    let job = scratch.filter(|_| is_requested);
    let job = job.map(|scratch| SolveJob { recipe, checkpoint, scaled, scratch, workers, options });
    let solved = job.as_ref().map_or(Ok(None), |job| solve::solve(job, &mut plan))?;
    if solved.is_some() {
        timing.mark("solve", since);
    }
    let source = solved.as_ref().map_or(scaled as &dyn TensorSource, |solved| &solved.source);
    let since = Instant::now();
    let corrected = bias_correction::correct(recipe, &mut plan, (checkpoint, scratch), source, workers)?;
    if corrected.is_some() {
        timing.mark("correct biases", since);
    }
    let source = corrected.as_ref().map_or(source, |corrected| corrected as &dyn TensorSource);
    let scales = origin.scales.as_deref();
    let rescaled = scales.map(|path| trained_scales::rescaled(path, &mut plan, checkpoint, source)).transpose()?;
    let source = rescaled.as_ref().map_or(source, |rescaled| rescaled as &dyn TensorSource);
    let written = write(begun, &mut plan, source, draft, &mut timing, options)?;
    let check_peak = || limit.map_or(Ok(()), |limit| limit.check(&format!("compress {}", shown_path(&recipe.model))));
    check_peak()?;
    let n_bytes = written.layout.n_bytes();
    if wanted.is_some_and(|SizeRange { least, most }| n_bytes < least || n_bytes > most) {
        let layers = solved.map(|solved| solved.layers).unwrap_or_default();
        let left = layers
            .iter()
            .filter_map(|(&index, layer)| Some((plan.tensors[index].info.name.to_string(), layer.error_left()?)));
        return Ok(Err(Miss { n_bytes, left: left.collect() }));
    }
    let evaluation = evaluated(recipe, origin, draft, options, &mut timing)?;
    // Remarks name the tensors whose types the plan did not foresee.
    let prediction = if written.is_wider { plan.predict()? } else { prediction };
    let evidence = Evidence {
        recipe,
        origin,
        checkpoint,
        plan: &plan,
        layout: &written.layout,
        solved: &solved.map(|solved| solved.layers).unwrap_or_default(),
        stats: &written.stats,
        outputs: &written.outputs,
        n_zeros: &written.n_zeros,
        written: &written.kept,
        prediction,
        evaluation,
    };
    let report = report::make(&evidence, workers, timing)?;
    check_peak()?;
    if let Some(metrics) = origin.metrics.as_deref()
        && presence::exists(metrics)?
    {
        draft.copy_file(metrics, Path::new(sums::METRICS))?;
    }
    options.stop.check()?;
    Ok(Ok(report))
}

/// Starts the draft, and checks that there is enough disk space.
fn start(recipe: &Recipe, checkpoint: &Checkpoint, prediction: Prediction, options: &RunOptions) -> Result<Draft> {
    let draft = Draft::create(&recipe.output, &inputs_of(recipe, checkpoint), options.force)?;
    // An upper bound might refuse an output that fits; so might a prediction if tensors may still be skipped.
    if prediction.is_exact && !recipe.allow_nonfinite {
        draft.check_space(prediction.n_bytes)?;
    }
    Ok(draft)
}

/// From this number of tensors on, freed memory is returned to the system after each phase.
const MANY_TENSORS: usize = 100_000;

/// Returns freed memory to the system if a model has many tensors, whose lists leave large gaps.
fn release_freed(checkpoint: &Checkpoint, options: &RunOptions) {
    if checkpoint.tensors().len() >= MANY_TENSORS {
        options.meter.release_freed();
    }
}

/// Writes and verifies everything in the draft except the report.
fn write(
    begun: &Begun,
    plan: &mut Plan,
    source: &dyn TensorSource,
    draft: &Draft,
    timing: &mut Timing,
    options: &RunOptions,
) -> Result<Written> {
    let Begun { recipe, checkpoint, workers, grids, .. } = *begun;
    let mut since = Instant::now();
    release_freed(checkpoint, options);
    let written = flow::write(WriteJob {
        plan,
        source,
        draft,
        recipe: recipe.to_manifest()?,
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")),
        workers,
        small_files: &|plan, manifest| small_files::write(draft, plan, checkpoint, (manifest, grids), workers),
        kept: &report::worst_tensors,
        is_over: &mut |phase| {
            timing.mark(phase, std::mem::replace(&mut since, Instant::now()));
            release_freed(checkpoint, options);
        },
    })?;
    checkpoint.check_unchanged()?;
    Ok(written)
}

/// Evaluates the draft if requested, and refuses it if it misses a bound.
fn evaluated(
    recipe: &Recipe,
    origin: &Origin,
    draft: &Draft,
    options: &RunOptions,
    timing: &mut Timing,
) -> Result<Option<EvaluationReport>> {
    let Some(stage) = &recipe.evaluate else { return Ok(None) };
    let since = Instant::now();
    let found = evaluate(stage, draft.path(), Some(&origin.model), options)?;
    stage.bounds.check(&found.metrics)?;
    timing.mark("evaluate", since);
    Ok(Some(found))
}

/// Returns every path that is read: the output must not overlap with any of them.
pub(crate) fn inputs_of<'a>(recipe: &'a Recipe, checkpoint: &'a Checkpoint) -> Vec<&'a Path> {
    let files = checkpoint.files().into_iter().map(|file| file.path());
    files.chain(recipe.read.iter().map(|named| named.path.as_path())).chain([recipe.model.as_path()]).collect()
}
