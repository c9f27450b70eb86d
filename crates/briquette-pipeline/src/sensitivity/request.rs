//! Sensitivities of a model's tensors, as a file and a page.

use super::{find, open_tensors};
use crate::output_file::OutputFile;
use crate::report::{SensitivityReport, html, to_json};
use crate::unwritten::unwritten;
use briquette_core::{Error, Remedy, Result};
use briquette_formats::{Choice, draft};
use briquette_recipe::raw::{
    RawBudget, RawCalibration, RawData, RawLayout, RawModel, RawOutput, RawQuantize, RawRecipe, StageKeys,
};
use briquette_recipe::{Recipe, Sensitivity};
use briquette_writer::{RunOptions, Workers};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A sensitivity measurement: the model, the method and the output.
#[derive(Debug, Clone, Default)]
pub struct SensitivityRequest {
    /// The model.
    pub model: PathBuf,
    /// The entry of the file that is the model.
    pub choice: Choice,
    /// The architecture, if the files do not determine it.
    pub arch: Option<String>,
    /// The method: gradient, measured or relative. The default is gradient with data, and relative without.
    pub how: Option<String>,
    /// Another method to compare with.
    pub against: Option<String>,
    /// The loss of the measured method: cosine, kl or metric.
    pub loss: Option<String>,
    /// The data, under `eval`.
    pub data: RawData,
    /// A file of input statistics of layers.
    pub statistics: Option<PathBuf>,
    /// The maximum number of items to run.
    pub n_samples: Option<usize>,
    /// The tensors to measure; all if empty.
    pub include: Vec<String>,
    /// The tensors to skip.
    pub exclude: Vec<String>,
    /// The file to write; its page has the same name.
    pub output: Option<PathBuf>,
}

/// Measures the sensitivity of a model to errors of each tensor that a quantization takes.
///
/// With an output, writes the result as JSON and as a page. Existing files are replaced only with `force`.
///
/// # Errors
/// - Config: the device is unknown, or the data is of another kind.
/// - Input: the data or the model is damaged.
/// - Refused: the output exists or is in the model's directory.
/// - Io: a file cannot be read or written.
pub fn sensitivity(request: &SensitivityRequest, options: &RunOptions) -> Result<SensitivityReport> {
    found(request, options).map_err(|error| if request.output.is_some() { unwritten(error) } else { error })
}

fn found(request: &SensitivityRequest, options: &RunOptions) -> Result<SensitivityReport> {
    let recipe = request.recipe(request.how.as_deref())?;
    let checkpoint = crate::open::model(&recipe)?;
    let page = request.output.as_ref().map(|output| output.with_extension("html"));
    let read = [&request.data.eval, &request.data.labels, &request.statistics];
    let read: Vec<&Path> = read.into_iter().flatten().map(PathBuf::as_path).collect();
    let files = [(&request.output, OutputFile::Sensitivity), (&page, OutputFile::Page)];
    for (path, kind) in files.into_iter().filter_map(|(path, kind)| Some((path.as_ref()?, kind))) {
        kind.check(path, &checkpoint, &read, options.force)?;
    }
    let plan = briquette_recipe::plan::plan(&recipe, &checkpoint, &options.stop)?;
    // The command has no flag that leaves such tensors out, but --exclude does.
    let open = open_tensors(&plan, None, &BTreeMap::new(), &checkpoint, &Workers::new(options)?)
        .map_err(|error| Error { remedy: error.remedy.filter(|remedy| *remedy != Remedy::AllowNonfinite), ..error })?;
    let found = |recipe: &Recipe| {
        let how = recipe.budget.as_ref().map_or(&Sensitivity::Relative, |budget| &budget.sensitivity);
        find(recipe, how, &open, &checkpoint, options)
    };
    let mut report = found(&recipe)?;
    if let Some(other) = &request.against {
        hold(&mut report, &found(&request.recipe(Some(other))?)?);
    }
    checkpoint.check_unchanged()?;
    if let Some((output, page)) = request.output.as_ref().zip(page) {
        let (json, html) = (to_json(&report)?, html::of_sensitivity(&report));
        draft::write_files(&[(output, &json), (&page, html.as_bytes())], options.force)?;
    }
    Ok(report)
}

/// Compares losses with those of another method.
fn hold(report: &mut SensitivityReport, other: &SensitivityReport) {
    for tensor in &mut report.tensors {
        tensor.against = other.tensor(&tensor.name).map(|other| other.loss);
    }
    let pairs = report.tensors.iter().filter_map(|tensor| Some((tensor.loss, tensor.against?)));
    let (own, others): (Vec<f64>, Vec<f64>) = pairs.unzip();
    report.rank_correlation = rank_correlation(&own, &others);
    report.against = Some(other.how.clone());
}

#[cfg(feature = "model")]
use briquette_eval::metrics::spearman as rank_correlation;

#[cfg(not(feature = "model"))]
fn rank_correlation(_: &[f64], _: &[f64]) -> Option<f64> {
    None
}

impl SensitivityRequest {
    /// Returns whether either method is `measured`.
    fn measures(&self) -> bool {
        [&self.how, &self.against].into_iter().any(|how| how.as_deref() == Some(Sensitivity::NAMES[1]))
    }

    /// Returns a recipe whose budget uses these losses.
    fn recipe(&self, how: Option<&str>) -> Result<Recipe> {
        let has_statistics = self.statistics.is_some();
        let stage = StageKeys::Quantize(RawQuantize {
            scheme: Some("step".into()),
            round: has_statistics.then(|| "gptq".into()),
            include: (!self.include.is_empty()).then(|| self.include.clone()),
            exclude: self.exclude.clone(),
            ..RawQuantize::default()
        });
        let is_run = self.data.eval.is_some() && how != Some(Sensitivity::NAMES[2]);
        let calibration = RawCalibration {
            data: self.data.eval.clone().filter(|_| is_run),
            statistics: self.statistics.clone(),
            max_length: self.data.max_length.filter(|_| is_run),
            samples: self.n_samples.filter(|_| is_run),
            ..RawCalibration::default()
        };
        let (key, strip_prefix) = (self.choice.key.clone(), self.choice.strip_prefix.clone());
        let (path, arch) = (Some(self.model.clone()), self.arch.clone());
        let layout = self.choice.layout.map(RawLayout::of);
        let raw = RawRecipe {
            model: RawModel { path, arch, key, strip_prefix, layout, ..RawModel::default() },
            // The budget below has a form in this format, also for an ONNX model.
            output: RawOutput {
                path: Some(self.output.clone().unwrap_or("-".into())),
                format: Some("briquette".into()),
                ..RawOutput::default()
            },
            stage: vec![stage.into()],
            data: Some(RawData { eval: None, max_length: None, ..self.data.clone() }),
            calibration: (is_run || has_statistics).then_some(calibration),
            budget: Some(RawBudget {
                bits: Some(4.0),
                sensitivity: how.map(str::to_string),
                // With two methods, the loss applies to the measured one.
                loss: self.loss.clone().filter(|_| !self.measures() || how == Some(Sensitivity::NAMES[1])),
                samples: self.n_samples.filter(|_| is_run),
                ..RawBudget::default()
            }),
            ..RawRecipe::default()
        };
        Recipe::from_raw(raw, Path::new(""))
    }
}
