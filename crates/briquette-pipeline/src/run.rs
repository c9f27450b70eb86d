//! A whole run: plan, survey, lay out, encode, verify, report, publish.

use crate::chain::{self, OfBatch};
use crate::context::{RunOptions, Workers};
use crate::distill::DistillReport;
use crate::encode::{Outcome, Place, Sink, encode};
use crate::evaluate::{EvaluationReport, evaluate};
use crate::factorize::FactorReport;
use crate::layout::Layout;
use crate::memory;
use crate::plan::interop::Loads;
use crate::plan::{Plan, Prediction, TensorPlan};
use crate::recipe::raw::RawLayout;
use crate::recipe::{Recipe, paths};
use crate::report::{self, Original, Report, StageBytes, Timing};
use crate::role::Role;
use crate::survey::survey;
use crate::verify::{self, Found};
use briquette_core::encoded::Part;
use briquette_core::{DType, Error, ErrorKind, Result, Storage};
use briquette_formats::{
    Checkpoint, Draft, DraftFile, InputFile, Manifest, ManifestEntry, Profile, TensorSource, companions, index,
    manifest, model_config, quantization_config, sums,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Compresses a model as a recipe says. The output is there whole and verified, or not at all.
///
/// # Errors
/// Config and Input for what the recipe and the model show, Refused by policy, Io for reading, writing and space,
/// Interrupted for a stop.
pub fn run(recipe: &Recipe, options: &RunOptions) -> Result<Report> {
    run_of_batch(recipe, options, None)
}

/// As [`run`], with what a batch knows of it.
pub(crate) fn run_of_batch(recipe: &Recipe, options: &RunOptions, of_batch: Option<OfBatch>) -> Result<Report> {
    // Whatever can be known now should not be found out after hours of work.
    let checked = memory::check(recipe, &options.device).and_then(|()| paths::check_data(&recipe.read));
    let report = checked.and_then(|()| match recipe.parts.is_empty() {
        true => run_stages(recipe, options, &Origin::of(recipe)),
        false => chain::run(recipe, options, of_batch),
    });
    options.progress.end();
    report.map_err(|error| match error.kind {
        ErrorKind::Interrupted(_) => Error { message: format!("{}; nothing was written", error.message), ..error },
        _ => error,
    })
}

/// Where the model of a run comes from: what was done to it before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    /// The recipe's own model: what the output is compared with.
    pub(crate) model: PathBuf,
    /// What it is, where it is not what the run reads.
    pub(crate) original: Option<Original>,
    /// The trainings.
    pub(crate) trained: Vec<DistillReport>,
    /// Linear layers that became two factors.
    pub(crate) factorized: Vec<FactorReport>,
    /// What the model's file holds besides the model, in words, where the run reads another.
    pub(crate) notes: Vec<String>,
    /// Bytes after each part.
    pub(crate) bytes: Vec<StageBytes>,
    /// What training wrote line by line.
    pub(crate) metrics: Option<PathBuf>,
    /// Seconds of each part.
    pub(crate) seconds: Vec<(String, f64)>,
    /// Seconds that all of it took before the last stages, in runs before this one too.
    pub(crate) spent: f64,
}

impl Origin {
    /// Of a run that reads the recipe's own model.
    pub(crate) fn of(recipe: &Recipe) -> Self {
        Self { model: recipe.model.clone(), ..Self::default() }
    }
}

/// The stages of a recipe that work on files.
pub(crate) fn run_stages(recipe: &Recipe, options: &RunOptions, origin: &Origin) -> Result<Report> {
    let (draft, report) = draft_of(recipe, options, origin)?;
    draft.publish()?;
    Ok(report)
}

/// The output of those stages, whole and verified, and not yet in its place.
pub(crate) fn draft_of(recipe: &Recipe, options: &RunOptions, origin: &Origin) -> Result<(Draft, Report)> {
    let started = Instant::now();
    let checkpoint = recipe.open_model()?;
    let plan = Plan::new(recipe, &checkpoint, &options.stop)?;
    let prediction = plan.predict()?;
    let draft = start(recipe, &checkpoint, prediction, options)?;
    let begun = Begun { recipe, origin, checkpoint: &checkpoint, prediction, started };
    let report = fill(&draft, plan, &begun, options).map_err(|error| draft.explain(error))?;
    Ok((draft, report))
}

/// What a draft is made from.
struct Begun<'a> {
    recipe: &'a Recipe,
    origin: &'a Origin,
    checkpoint: &'a Checkpoint,
    prediction: Prediction,
    started: Instant,
}

/// All of the draft, verified, evaluated and with its report.
fn fill(draft: &Draft, plan: Plan, begun: &Begun, options: &RunOptions) -> Result<Report> {
    let Begun { recipe, origin, checkpoint, prediction, started } = *begun;
    let workers = Workers::new(options)?;
    let mut timing = Timing::default();
    timing.mark("plan", started);

    let (plan, layout, written) = write(recipe, plan, checkpoint, draft, &workers, &mut timing)?;
    let evaluation = evaluated(recipe, origin, draft, options, &mut timing)?;
    let made = report::Made {
        recipe,
        origin,
        checkpoint,
        plan: &plan,
        layout: &layout,
        outcomes: &written.outcomes,
        found: &written.found,
        written: &written.checkpoint,
        prediction,
        evaluation,
    };
    let report = report::make(&made, &workers, timing, started)?;
    write_reports(draft, &report, origin)?;
    options.stop.check()?;
    Ok(report)
}

/// Starts the draft, and refuses at once where there is too little room for it.
fn start(recipe: &Recipe, checkpoint: &Checkpoint, prediction: Prediction, options: &RunOptions) -> Result<Draft> {
    let draft = Draft::create(&recipe.output, &inputs_of(recipe, checkpoint), options.force)?;
    // An upper bound might refuse what would fit; so might a prediction where tensors may yet be left as they are.
    if prediction.is_exact && !recipe.allow_nonfinite {
        draft.check_space(prediction.n_bytes)?;
    }
    Ok(draft)
}

/// What writing and reading back showed.
struct Written {
    outcomes: Vec<Outcome>,
    found: Vec<Found>,
    checkpoint: Checkpoint,
}

/// Surveys, encodes and verifies: all of the draft but the report.
fn write<'a>(
    recipe: &Recipe,
    mut plan: Plan<'a>,
    checkpoint: &Checkpoint,
    draft: &Draft,
    workers: &Workers,
    timing: &mut Timing,
) -> Result<(Plan<'a>, Layout, Written)> {
    let since = Instant::now();
    let surveys = survey(&mut plan, checkpoint, workers, recipe.allow_nonfinite)?;
    let n_kept: Vec<usize> = surveys.iter().map(|survey| survey.n_kept).collect();
    let layout = Layout::new(&plan, &n_kept)?;
    timing.mark("survey", since);

    let since = Instant::now();
    let files = Files::create(draft, &layout)?;
    let outcomes = encode(&plan, &surveys, &layout.tensors, checkpoint, &files, workers)?;
    timing.mark("encode", since);

    let since = Instant::now();
    let manifest = manifest_of(recipe, &plan, &layout, &outcomes)?;
    write_small_files(draft, &plan, &layout, checkpoint, &manifest, workers)?;
    let written = Checkpoint::open(draft.path())?;
    let found = sync_and_verify(draft, &files, &written, workers)?;
    checkpoint.check_unchanged()?;
    timing.mark("verify", since);
    drop(files);
    Ok((plan, layout, Written { outcomes, found, checkpoint: written }))
}

/// What no sum covers: the report, and what training wrote.
fn write_reports(draft: &Draft, report: &Report, origin: &Origin) -> Result<()> {
    draft.write_file(Path::new("report.json"), &report::to_json(report)?)?;
    draft.write_file(Path::new("report.html"), report::html::to_html(report).as_bytes())?;
    match origin.metrics.as_deref().filter(|path| path.exists()) {
        Some(metrics) => draft.copy_file(metrics, Path::new(sums::METRICS)),
        None => Ok(()),
    }
}

/// Runs the draft where that is asked, and refuses it where it is not good enough.
fn evaluated(
    recipe: &Recipe,
    origin: &Origin,
    draft: &Draft,
    options: &RunOptions,
    timing: &mut Timing,
) -> Result<Option<EvaluationReport>> {
    let Some(asked) = &recipe.evaluate else { return Ok(None) };
    let since = Instant::now();
    let found = evaluate(asked, draft.path(), Some(&origin.model), options)?;
    asked.bounds.check(&found.metrics)?;
    timing.mark("evaluate", since);
    Ok(Some(found))
}

/// What the output may not meet.
pub(crate) fn inputs_of<'a>(recipe: &'a Recipe, checkpoint: &'a Checkpoint) -> Vec<&'a Path> {
    let files = checkpoint.files().into_iter().map(|file| file.path());
    files.chain(recipe.read.iter().map(|named| named.path.as_path())).chain([recipe.model.as_path()]).collect()
}

/// The weight files of a draft, as a place for parts.
struct Files<'a> {
    layout: &'a Layout,
    files: Vec<DraftFile>,
}

impl<'a> Files<'a> {
    /// Creates the files with their space reserved, and writes what is known already.
    fn create(draft: &Draft, layout: &'a Layout) -> Result<Self> {
        draft.check_space(layout.n_bytes())?;
        let create = |file: &crate::layout::FileLayout| -> Result<DraftFile> {
            let out = draft.create_file(Path::new(&file.name), file.n_bytes)?;
            out.write_at(0, &file.header)?;
            file.constants.iter().try_for_each(|(offset, bytes)| out.write_at(*offset, bytes))?;
            Ok(out)
        };
        Ok(Self { layout, files: layout.files.iter().map(create).collect::<Result<_>>()? })
    }
}

impl Sink for Files<'_> {
    fn place<'a>(&self, tensor: usize, part: Part, offset: u64, bytes: &'a [u8]) -> Result<Option<Place<'a>>> {
        let placed = &self.layout.tensors[tensor];
        let no_place = || Error::bug(format!("part {part:?} of tensor {tensor} has no place"));
        let (_, start, layout) = placed.part(part).ok_or_else(no_place)?;
        let (offset, bytes) = match layout {
            Some(layout) => {
                layout.write(offset, bytes).map(|(offset, bytes)| (offset, bytes.into())).ok_or_else(no_place)?
            }
            None => (offset, bytes.into()),
        };
        Ok(Some(Place { file: placed.file, offset: start + offset, bytes }))
    }

    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.files[file].write_at(offset, bytes)
    }
}

fn manifest_of(recipe: &Recipe, plan: &Plan, layout: &Layout, outcomes: &[Outcome]) -> Result<Manifest> {
    let mut tensors = BTreeMap::new();
    for (tensor, (placed, outcome)) in plan.tensors.iter().zip(layout.tensors.iter().zip(outcomes)) {
        let activations = placed.coding.codes.and_then(|_| tensor.activations());
        let entry = ManifestEntry {
            dtype: tensor.stored_dtype(),
            shape: tensor.info.shape.clone(),
            output_axis: tensor.stored_axis(placed.coding),
            coding: placed.coding,
            n_kept: (placed.coding.storage == Storage::Bitmask).then_some(placed.n_kept),
            activations: activations.map(str::to_string),
            file: layout.files[placed.file].name.clone(),
            hash: outcome.hash,
            tied_to: tensor.tied_to.map(|main| plan.tensors[main].info.name.clone()),
        };
        tensors.insert(tensor.info.name.clone(), entry);
    }
    let mut recipe = recipe.to_manifest()?;
    if plan.layout == RawLayout::Burn {
        // The next reader cannot see it in the files.
        recipe["model"]["layout"] = "burn".into();
    }
    Ok(Manifest {
        format: "briquette".into(),
        version: manifest::version_of(&tensors),
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")).into(),
        profile: plan.profile,
        recipe,
        tensors,
    })
}

/// The manifest, the index of shards, and the files that come along.
fn write_small_files(
    draft: &Draft,
    plan: &Plan,
    layout: &Layout,
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    workers: &Workers,
) -> Result<()> {
    draft.write_file(Path::new(manifest::FILE_NAME), &manifest.to_json()?)?;
    companions::copy_into(draft, checkpoint, &|| workers.check_stop())?;
    if let Some(config) = config_of(plan, checkpoint, manifest)? {
        draft.write_file(Path::new(model_config::FILE_NAME), &config)?;
    }
    let needs_index = matches!(plan.profile, Profile::Dense | Profile::CompressedTensors) && layout.files.len() > 1;
    if needs_index {
        let entries =
            layout.files.iter().flat_map(|file| file.names.iter().map(|name| (name.clone(), file.name.clone())));
        let total = layout.files.iter().map(|file| file.n_bytes - file.header.len() as u64).sum();
        draft.write_file(Path::new("model.safetensors.index.json"), &index::to_json(&entries.collect(), total))?;
    }
    Ok(())
}

/// The one type of all weights that are no codes, where a stage cast them.
fn dtype_of(plan: &Plan) -> Option<DType> {
    let floats = plan.tensors.iter().filter(|tensor| tensor.info.dtype.is_weight() && tensor.quant.is_none());
    let mut dtypes: Vec<DType> = floats.clone().map(|tensor| tensor.stored_dtype()).collect();
    dtypes.dedup();
    let is_cast = floats.clone().any(|tensor| tensor.cast.is_some());
    dtypes.first().copied().filter(|_| is_cast && dtypes.len() == 1)
}

/// Whether other programs may have a Linear layer for a tensor: routers are such in some versions, and what nothing is known of.
fn may_be_linear(tensor: &TensorPlan) -> bool {
    tensor.info.shape.rank() == 2 && matches!(tensor.role, Role::Linear | Role::Parameter | Role::Unknown)
}

/// The model's `config.json`, telling other programs about the codes of this output and not of an earlier one.
fn config_of(plan: &Plan, checkpoint: &Checkpoint, manifest: &Manifest) -> Result<Option<Vec<u8>>> {
    let mut original = model_config::read(checkpoint)?;
    if let Some(dtype) = dtype_of(plan) {
        original = model_config::with_dtype(original, dtype)?;
    }
    let quantization = match plan.profile {
        Profile::CompressedTensors => {
            let linear = plan.tensors.iter().filter(|tensor| may_be_linear(tensor));
            let linear: Vec<&str> = linear.map(|tensor| tensor.info.name.as_str()).collect();
            let loads = Loads::of(checkpoint)?;
            quantization_config::of(manifest, &linear, loads.family(), original.as_deref())
        }
        _ => None,
    };
    model_config::with_quantization(original, quantization.as_ref(), &checkpoint.directory())
}

/// Waits until the files are on disk and, meanwhile, reads back what was written; then writes the sums.
fn sync_and_verify(draft: &Draft, files: &Files, written: &Checkpoint, workers: &Workers) -> Result<Vec<Found>> {
    let (stored, manifest) =
        written.stored().zip(written.manifest()).ok_or_else(|| Error::bug("the draft is no directory of ours"))?;
    let paths = sums::files_below(draft.path())?;
    let (synced, verified) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| files.files.iter().try_for_each(DraftFile::sync));
        let decode = || {
            let found = verify::decode_all(stored, workers)?;
            verify::compare(&found, stored, manifest).map(|()| found)
        };
        // A sum goes through a file from its start to its end, on one thread: it is what takes longest.
        let (summed, verified) = workers.join(|| sums_of(draft.path(), &paths, workers), decode);
        let synced = syncing.join().unwrap_or_else(|_| Err(Error::bug("syncing panicked")));
        (synced.and(summed), verified)
    });
    let found = verified?;
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&synced?).as_bytes())?;
    Ok(found)
}

fn sums_of(root: &Path, paths: &[PathBuf], workers: &Workers) -> Result<BTreeMap<String, String>> {
    let sum = |(): &mut (), path: &PathBuf| {
        let (name, file) = (path.to_string_lossy().into_owned(), InputFile::open(&root.join(path))?);
        Ok((name, sums::sha256_of(&file, workers.n_threads() > 1, &|| workers.check_stop())?))
    };
    Ok(workers.map(paths, || (), sum)?.into_iter().collect())
}
