//! The stage that factorizes linear layers.
//!
//! `X.weight`, `[out, in]`, becomes `X.down.weight`, `[rank, in]`, and `X.weight`, `[out, rank]`; a bias stays
//! unchanged.

use briquette_core::{Error, OutputAxis, Result, rows};
use briquette_formats::{
    Checkpoint, Draft, InputFile, OutputFormat, TensorInfo, TensorSource, WeightLayout, companions, model_config,
};
use briquette_methods::prune::low_rank::{Factors, Spectrum};
use briquette_recipe::{FactorizeStage, Recipe};
use briquette_report::FactorReport;
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::manifest::ManifestSource;
use briquette_writer::plan::Nonfinite;
use briquette_writer::{self as flow, Plan, TensorPlan, WriteJob};
use ndarray::ArrayView2;
use std::collections::BTreeSet;
use std::path::Path;

/// The name of the report in the directory of a factorized model.
pub(crate) const REPORT: &str = "factorize.json";
/// The suffix of the name of a weight.
const SUFFIX: &str = ".weight";
/// The suffix of the name of the first factor.
const DOWN: &str = "down.weight";

/// A tensor of the output: copied from the model, or computed here.
enum OutputTensor {
    Copied(usize),
    Made(Vec<f32>),
}

/// Factorizes linear layers, and writes the model with the factors as a plain directory.
///
/// The memory is that of the factors, and of one layer in f64 per thread.
///
/// # Errors
/// - Config: no layer is chosen.
/// - Input: the model is damaged.
/// - Refused: a weight is not finite.
/// - Io: a file cannot be read or written.
/// - Interrupted: a stop was requested.
pub(crate) fn factorize(
    recipe: &Recipe,
    stage: &FactorizeStage,
    model: &Path,
    output: &Path,
    options: &RunOptions,
) -> Result<()> {
    let checkpoint = Checkpoint::open_as(model, &recipe.choice)?;
    let plain = Recipe { parts: Vec::new(), stages: Vec::new(), profile: OutputFormat::Briquette, ..recipe.clone() };
    let plan = briquette_recipe::plan::plan(&plain, &checkpoint, &options.stop)?;
    let chosen = chosen(stage, &plan)?;
    let workers = Workers::new(options)?;
    workers.begin("factorize", chosen.iter().map(|tensor| tensor.info.n_bytes()).sum());
    let found = workers.map(
        &chosen,
        || (),
        |(), tensor| {
            let found = factors_of(stage, tensor, &checkpoint)?;
            workers.advance(tensor.info.n_bytes());
            Ok(found)
        },
    )?;
    let reports: Vec<FactorReport> =
        chosen.iter().zip(&found).map(|(tensor, factors)| report(tensor, factors)).collect();
    let mut tensors: Vec<(TensorInfo, OutputTensor)> = plan
        .tensors
        .iter()
        .map(|tensor| (TensorInfo::clone(tensor.info), OutputTensor::Copied(tensor.index())))
        .collect();
    for (tensor, factors) in chosen.iter().zip(found) {
        let Some(Factors { rank, up, down, .. }) = factors else { continue };
        let (TensorInfo { name, dtype, shape }, stem) = (tensor.info, stem(&tensor.info.name));
        let info = |name: String, shape: [usize; 2]| TensorInfo::checked(name, *dtype, shape.to_vec());
        tensors[tensor.index()] = (info(name.to_string(), [shape.0[0], rank])?, OutputTensor::Made(up));
        tensors.push((info(format!("{stem}down{SUFFIX}"), [rank, shape.0[1]])?, OutputTensor::Made(down)));
    }
    let (infos, tensors) = tensors.into_iter().unzip();
    write(&FactoredModel { checkpoint: &checkpoint, infos, tensors }, &reports, output, &workers)
}

/// Returns the matrices that the stage chooses. Tied tensors are skipped: two factors besides the tied tensor
/// would not be smaller.
fn chosen<'a>(stage: &FactorizeStage, plan: &'a Plan) -> Result<Vec<&'a TensorPlan<'a>>> {
    if plan.layout == WeightLayout::Burn {
        let message =
            "found weights [in, out] in burn's layout, expected [out, in]; export the model to another format";
        return Err(Error::config(message).at("factorize"));
    }
    let selection = &stage.selection;
    let names = || plan.tensors.iter().map(|tensor| tensor.info.name.as_str());
    for patterns in selection.include.iter().chain([&selection.exclude]) {
        patterns.check_used("tensor", names())?;
    }
    let shared: BTreeSet<usize> = plan.tensors.iter().filter_map(|tensor| tensor.tied_to()).collect();
    let is_tied = |tensor: &TensorPlan| tensor.tied_to().is_some() || shared.contains(&tensor.index());
    let downs: BTreeSet<&str> = names().filter(|name| name.ends_with(DOWN)).collect();
    let is_layer_of = |tensor: &TensorPlan| {
        let (info, down) = (tensor.info, format!("{}down{SUFFIX}", stem(&tensor.info.name)));
        let is_layer =
            info.name.split('.').next_back() == Some("weight") && info.shape.rank() == 2 && info.n_elements() > 0;
        let is_factor = info.name.ends_with(".down.weight") || downs.contains(down.as_str());
        is_layer && !is_factor && selection.chooses(&info.name, tensor.role) && !is_tied(tensor)
    };
    let (chosen, turned): (Vec<&TensorPlan>, Vec<_>) =
        plan.tensors.iter().filter(|tensor| is_layer_of(tensor)).partition(|tensor| tensor.axis == OutputAxis::First);
    match chosen.is_empty() {
        true if !turned.is_empty() => {
            let message = format!("found weights [in, out], such as {}, expected [out, in]", turned[0].info.name);
            Err(Error::config(format!("{message}; remove the stage")).at("factorize"))
        }
        true => Err(Error::config("no linear layer is chosen; choose some with include").at("factorize")),
        false => Ok(chosen),
    }
}

/// Returns a name up to its last segment, with the dot.
fn stem(name: &str) -> &str {
    &name[..name.rfind('.').map_or(0, |dot| dot + 1)]
}

fn factors_of(stage: &FactorizeStage, tensor: &TensorPlan, checkpoint: &Checkpoint) -> Result<Option<Factors>> {
    let info = tensor.info;
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(tensor.index(), 0, &mut bytes)?;
    let mut weights = vec![0.0; info.n_elements()];
    rows::to_f32(&bytes, info.dtype, &mut weights);
    if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
        let message = format!("element {at} is {}, expected a finite number; exclude the tensor", weights[at]);
        return Err(Error::refused(message).at(format_args!("tensor {:?}", info.name)));
    }
    let [n_rows, n_cols] = [info.shape.0[0], info.shape.0[1]];
    let weights = ArrayView2::from_shape((n_rows, n_cols), &weights);
    let spectrum = Spectrum::of(weights.map_err(|error| Error::bug(format!("{}: {error}", info.name)))?);
    Ok(stage.rank.of(&spectrum.energies, n_rows, n_cols).map(|rank| spectrum.factors(rank)))
}

fn report(tensor: &TensorPlan, factors: &Option<Factors>) -> FactorReport {
    FactorReport {
        name: tensor.info.name.to_string(),
        shape: tensor.info.shape.0.clone(),
        rank: factors.as_ref().map(|factors| factors.rank),
        energy: factors.as_ref().map_or(1.0, |factors| factors.energy),
    }
}

/// Writes and verifies a directory of plain tensors, the model's companion files, and the report.
fn write(source: &FactoredModel, reports: &[FactorReport], output: &Path, workers: &Workers) -> Result<()> {
    let (draft, checkpoint) = (Draft::create(output, &[], false)?, source.checkpoint);
    let mut plan = Plan::unchanged(source.tensors(), OutputFormat::Dense, Nonfinite::Unchanged);
    let small_files = |_: &Plan, _: &ManifestSource| {
        companions::copy_into(&draft, checkpoint, &|| workers.check_stop())?;
        let config = model_config::with_quantization(model_config::read(checkpoint)?, None, &checkpoint.directory())?;
        config.map_or(Ok(()), |config| draft.write_file(Path::new(model_config::FILE_NAME), &config))?;
        let json = serde_json::to_vec_pretty(reports).map_err(|error| Error::bug(format!("the report: {error}")))?;
        draft.write_file(Path::new(REPORT), &json)
    };
    let written = flow::write(WriteJob {
        plan: &mut plan,
        source,
        draft: &draft,
        recipe: serde_json::json!({ "stage": [] }),
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")),
        workers,
        small_files: &small_files,
        kept: &|_, _| Vec::new(),
        is_over: &mut |_| {},
    });
    written.map(drop)?;
    checkpoint.check_unchanged()?;
    draft.publish()
}

/// A model with some tensors that were computed here.
struct FactoredModel<'a> {
    checkpoint: &'a Checkpoint,
    infos: Vec<TensorInfo>,
    tensors: Vec<OutputTensor>,
}

impl TensorSource for FactoredModel<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        match &self.tensors[index] {
            OutputTensor::Copied(place) => self.checkpoint.read(*place, start, out),
            OutputTensor::Made(values) => {
                let width = self.infos[index].dtype.n_bits() / 8;
                rows::from_f32(&values[start / width..(start + out.len()) / width], self.infos[index].dtype, out);
                Ok(())
            }
        }
    }

    fn reads_ranges(&self, index: usize) -> bool {
        match &self.tensors[index] {
            OutputTensor::Copied(place) => self.checkpoint.reads_ranges(*place),
            OutputTensor::Made(_) => true,
        }
    }

    fn files(&self) -> Vec<&InputFile> {
        self.checkpoint.files()
    }
}
