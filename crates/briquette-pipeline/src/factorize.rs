//! The stage that makes two factors of linear layers: `X.weight`, `[out, in]`, becomes `X.down.weight`, `[rank, in]`, and
//! `X.weight`, `[out, rank]`; a bias stays as it is.

use briquette_core::{Error, OutputAxis, Result, rows};
use briquette_flow::context::{RunOptions, Workers};
use briquette_flow::{Plan, TensorPlan};
use briquette_formats::{
    Checkpoint, Draft, DraftFile, InputFile, OutputFormat, TensorInfo, TensorSource, WeightLayout, companions,
    model_config, safetensors, sums,
};
use briquette_prune::low_rank::{Factors, Spectrum};

use briquette_recipe::{FactorizeStage, Recipe};
use briquette_report::FactorReport;
use ndarray::ArrayView2;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file in the directory of what was factorized that says how.
pub(crate) const REPORT: &str = "factorize.json";
/// Bytes of a tensor that are copied at a time.
const PIECE: usize = 16 << 20;
/// How the name of a weight ends.
const SUFFIX: &str = ".weight";
/// How the name of the first factor ends.
const DOWN: &str = "down.weight";

/// What is written: a tensor as it was, or one made here.
enum OutputTensor {
    Copied(usize),
    Made(Vec<f32>),
}

/// Makes the factors, and writes the model with them as a plain directory. Memory is that of the factors, and of one layer in f64
/// for each thread.
///
/// # Errors
/// Config where nothing is chosen; Input and Refused for what the model has; Io; Interrupted.
pub(crate) fn factorize(
    recipe: &Recipe,
    stage: &FactorizeStage,
    model: &Path,
    output: &Path,
    options: &RunOptions,
) -> Result<()> {
    let checkpoint = Checkpoint::open_as(model, &recipe.choice)?;
    let plain = Recipe { parts: Vec::new(), stages: Vec::new(), profile: OutputFormat::Briquette, ..recipe.clone() };
    let plan = briquette_plan::plan(&plain, &checkpoint, &options.stop)?;
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
        .map(|tensor| (TensorInfo::clone(tensor.info), OutputTensor::Copied(tensor.index)))
        .collect();
    for (tensor, factors) in chosen.iter().zip(found) {
        let Some(Factors { rank, up, down, .. }) = factors else { continue };
        let (TensorInfo { name, dtype, shape }, stem) = (tensor.info, stem(&tensor.info.name));
        let info = |name: String, shape: [usize; 2]| TensorInfo::checked(name, *dtype, shape.to_vec());
        tensors[tensor.index] = (info(name.clone(), [shape.0[0], rank])?, OutputTensor::Made(up));
        tensors.push((info(format!("{stem}down{SUFFIX}"), [rank, shape.0[1]])?, OutputTensor::Made(down)));
    }
    write(&checkpoint, tensors, &reports, output, &workers)
}

/// The matrices that the stage chooses. One that another name shares stays: two factors beside it would not be smaller.
fn chosen<'a>(stage: &FactorizeStage, plan: &'a Plan) -> Result<Vec<&'a TensorPlan<'a>>> {
    if plan.layout == WeightLayout::Burn {
        let message = "its weights lie [in, out], as burn keeps them, and only [out, in] is factorized; export it to another format";
        return Err(Error::config(message).at("factorize"));
    }
    let selection = &stage.selection;
    let names = || plan.tensors.iter().map(|tensor| tensor.info.name.as_str());
    for patterns in selection.include.iter().chain([&selection.exclude]) {
        patterns.check_used("tensor", names())?;
    }
    let shared: BTreeSet<usize> = plan.tensors.iter().filter_map(|tensor| tensor.tied_to).collect();
    let is_tied = |tensor: &TensorPlan| tensor.tied_to.is_some() || shared.contains(&tensor.index);
    let downs: BTreeSet<&str> = names().filter(|name| name.ends_with(DOWN)).collect();
    let is_chosen = |tensor: &&TensorPlan| {
        let (info, down) = (tensor.info, format!("{}down{SUFFIX}", stem(&tensor.info.name)));
        let is_layer =
            info.name.split('.').next_back() == Some("weight") && info.shape.rank() == 2 && info.n_elements() > 0;
        let is_factor = info.name.ends_with(".down.weight") || downs.contains(down.as_str());
        let lies_straight = tensor.axis == OutputAxis::First;
        is_layer && lies_straight && !is_factor && selection.chooses(&info.name, tensor.role) && !is_tied(tensor)
    };
    let chosen: Vec<&TensorPlan> = plan.tensors.iter().filter(is_chosen).collect();
    match chosen.is_empty() {
        true => Err(Error::config("no linear layer is chosen; choose some with include").at("factorize")),
        false => Ok(chosen),
    }
}

/// A name up to its last segment, with the dot.
fn stem(name: &str) -> &str {
    &name[..name.rfind('.').map_or(0, |dot| dot + 1)]
}

fn factors_of(stage: &FactorizeStage, tensor: &TensorPlan, checkpoint: &Checkpoint) -> Result<Option<Factors>> {
    let info = tensor.info;
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(tensor.index, 0, &mut bytes)?;
    let mut weights = vec![0.0; info.n_elements()];
    rows::to_f32(&bytes, info.dtype, &mut weights);
    if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
        let message = format!("element {at} is {}, and it has no singular values; exclude it", weights[at]);
        return Err(Error::refused(message).at(format_args!("tensor {:?}", info.name)));
    }
    let [n_rows, n_cols] = [info.shape.0[0], info.shape.0[1]];
    let weights = ArrayView2::from_shape((n_rows, n_cols), &weights);
    let spectrum = Spectrum::of(weights.map_err(|error| Error::bug(format!("{}: {error}", info.name)))?);
    Ok(stage.rank.of(&spectrum.energies, n_rows, n_cols).map(|rank| spectrum.factors(rank)))
}

fn report(tensor: &TensorPlan, factors: &Option<Factors>) -> FactorReport {
    FactorReport {
        name: tensor.info.name.clone(),
        shape: tensor.info.shape.0.clone(),
        rank: factors.as_ref().map(|factors| factors.rank),
        energy: factors.as_ref().map_or(1.0, |factors| factors.energy),
    }
}

/// A directory of one safetensors file, its companions, and what was done.
fn write(
    checkpoint: &Checkpoint,
    tensors: Vec<(TensorInfo, OutputTensor)>,
    reports: &[FactorReport],
    output: &Path,
    workers: &Workers,
) -> Result<()> {
    let draft = Draft::create(output, &[], false)?;
    let (infos, written): (Vec<TensorInfo>, Vec<OutputTensor>) = tensors.into_iter().unzip();
    let metadata = [("format".to_string(), "pt".to_string())].into();
    let (header, starts) = safetensors::write_header(&infos, &metadata);
    let n_bytes = header.len() as u64 + infos.iter().map(|info| info.n_bytes() as u64).sum::<u64>();
    draft.check_space(n_bytes)?;
    let file = draft.create_file(Path::new("model.safetensors"), n_bytes)?;
    file.write_at(0, &header)?;
    for ((info, written), start) in infos.iter().zip(written).zip(starts) {
        workers.check_stop()?;
        written.write(info, checkpoint, &file, start)?;
    }
    file.sync()?;
    companions::copy_into(&draft, checkpoint, &|| workers.check_stop())?;
    let config = model_config::with_quantization(model_config::read(checkpoint)?, None, &checkpoint.directory())?;
    config.map_or(Ok(()), |config| draft.write_file(Path::new(model_config::FILE_NAME), &config))?;
    let json = serde_json::to_vec_pretty(reports).map_err(|error| Error::bug(format!("the report: {error}")))?;
    draft.write_file(Path::new(REPORT), &json)?;
    checkpoint.check_unchanged()?;
    write_sums(&draft, workers)?;
    draft.publish()
}

impl OutputTensor {
    /// Writes it at its place in the file.
    fn write(&self, info: &TensorInfo, checkpoint: &Checkpoint, file: &DraftFile, start: u64) -> Result<()> {
        match self {
            Self::Made(values) => {
                let mut bytes = vec![0; info.n_bytes()];
                rows::from_f32(values, info.dtype, &mut bytes);
                file.write_at(start, &bytes)
            }
            Self::Copied(index) => {
                let piece = if checkpoint.reads_ranges(*index) { PIECE } else { info.n_bytes().max(1) };
                for at in (0..info.n_bytes()).step_by(piece) {
                    let mut bytes = vec![0; piece.min(info.n_bytes() - at)];
                    checkpoint.read(*index, at, &mut bytes)?;
                    file.write_at(start + at as u64, &bytes)?;
                }
                Ok(())
            }
        }
    }
}

/// What every file adds up to: a run that goes on from here looks.
fn write_sums(draft: &Draft, workers: &Workers) -> Result<()> {
    let sum = |path: PathBuf| {
        let file = InputFile::open(&draft.path().join(&path))?;
        Ok((path.to_string_lossy().into_owned(), sums::sha256_of(&file, false, &|| workers.check_stop())?))
    };
    let found: BTreeMap<String, String> =
        sums::files_below(draft.path())?.into_iter().map(sum).collect::<Result<_>>()?;
    draft.write_file(Path::new(sums::FILE_NAME), sums::to_lines(&found).as_bytes())
}
