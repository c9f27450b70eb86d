//! Validates a raw recipe.

use crate::parse::budget::Budget;
use crate::parse::calibration::CalibrationRun;
use crate::parse::distill::DistillStage;
use crate::parse::evaluate::Evaluate;
use crate::parse::kind::StageKind;
use crate::parse::paths::{self, NamedPath, directory_of};
use crate::parse::raw::{RawLayout, RawMemory, RawOutput, RawOutputs, RawRecipe, RawRole};
use crate::parse::stage::{ModelStage, RecipePart, RecipeStages, Stage};
use crate::parse::words::one_of;
use crate::parse::{ranges, stage, text, used};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result, RoleRule};
use briquette_formats::{Choice, OutputFormat, limits};
use std::path::{Path, PathBuf};

/// A validated recipe.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The path of the model.
    pub model: PathBuf,
    /// Which entry of the model's file is the model.
    pub choice: Choice,
    /// The directory to write.
    pub output: PathBuf,
    /// The layout of Linear weights, if the recipe sets it.
    pub layout: Option<RawLayout>,
    /// Roles of tensors that are detected wrongly.
    pub roles: Vec<RoleRule>,
    /// Whether NaN and infinity are accepted.
    pub allow_nonfinite: bool,
    /// The output format.
    pub profile: OutputFormat,
    /// Whether codes are entropy-coded.
    pub codes_entropy: bool,
    /// Whether to write compressed-tensors that transformers is not known to load.
    pub allow_untested: bool,
    /// Largest size of a shard; the limit of the format by default.
    pub max_shard_bytes: u64,
    /// Distill, factorize, shrink and fold stages, each with the stages before it. Each needs the finished model of the
    /// previous part.
    pub parts: Vec<RecipePart>,
    /// The stages after the last part.
    pub stages: Vec<Stage>,
    /// The training of the scales of codes, after all other stages.
    pub scales: Option<Box<DistillStage>>,
    /// The calibration run that gathers input statistics, if stages need them and no file has them.
    pub calibration: Option<CalibrationRun>,
    /// The budget that chooses step sizes of the last stages.
    pub budget: Option<Budget>,
    /// The evaluation of the output.
    pub evaluate: Option<Evaluate>,
    /// The memory limit of the run in bytes.
    pub memory_limit: Option<u64>,
    /// Every path that the run reads, resolved: the model, teachers, and data that a stage uses.
    pub read: Vec<NamedPath>,
    /// The recipe as written.
    pub asked: RawRecipe,
}

impl Recipe {
    /// Reads a recipe; its paths are relative to its file.
    ///
    /// # Errors
    /// - Config: the recipe is invalid; the message has the line.
    /// - Io: the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_raw(text::read(path)?, &directory_of(path)).map_err(|error| locate(error, path))
    }

    /// Validates a raw recipe; its paths are relative to `directory`.
    ///
    /// # Errors
    /// Config: a value is invalid; the message starts with the key.
    pub fn from_raw(asked: RawRecipe, directory: &Path) -> Result<Self> {
        ranges::check(&asked)?;
        let mut raw = asked.clone();
        paths::resolve(&mut raw, directory);
        let missing = |key: &str, what: &str| Error::config(format!("{key}: missing; set the path of the {what}"));
        let model = raw.model.path.clone().ok_or_else(|| missing("model.path", "model to compress"))?;
        let output = raw.output.path.clone().ok_or_else(|| missing("output.path", "directory to write"))?;
        let RecipeStages { parts, stages, scales } = stage::stages_of(&raw)?;
        let calibration = CalibrationRun::from_raw(&raw)?;
        let budget = Budget::from_raw(&raw, &parts, &stages)?;
        let evaluate = Evaluate::from_checked(&raw)?;
        let keeps_places = parts.is_empty()
            && scales.is_none()
            && budget.is_none()
            && raw.output.storage.as_deref() != Some("entropy");
        let profile = format_for(raw.output.format.as_deref(), &model, keeps_places)?;
        let has_steps = budget.as_ref().is_some_and(|budget| budget.has_steps);
        used::check_memory(&raw)?;
        used::check_select(&raw)?;
        let rule = |rule: &RawRole| {
            let (patterns, axis) = (Patterns::new(&rule.include)?, rule.outputs.map(RawOutputs::axis));
            Ok(RoleRule { patterns, role: rule.role, axis })
        };
        Ok(Self {
            choice: raw.model.choice(),
            output,
            layout: raw.model.layout,
            roles: raw.model.roles.iter().map(rule).collect::<Result<_>>()?,
            allow_nonfinite: raw.model.allow_nonfinite,
            profile,
            model,
            codes_entropy: codes_entropy(&raw.output, has_steps, profile)?,
            allow_untested: raw.output.allow_untested,
            max_shard_bytes: limits::MAX_SHARD_BYTES,
            parts,
            stages,
            scales,
            calibration,
            budget,
            evaluate,
            memory_limit: raw.memory.as_ref().map_or(Ok(None), RawMemory::limit_bytes)?,
            read: paths::read(&raw),
            asked,
        })
    }
}

impl Recipe {
    /// Returns the stages that train, in their order.
    pub fn trainings(&self) -> impl Iterator<Item = &DistillStage> {
        let parts = self.parts.iter().filter_map(|part| part.then.as_distill());
        parts.chain(self.scales.as_deref())
    }

    /// Returns the stages before the first factorize, shrink or fold stage, which work on the model's own tensors.
    ///
    /// These stages replace tensors. Training changes only values.
    pub fn file_stages(&self) -> impl Iterator<Item = &Stage> {
        let is_transform = |part: &RecipePart| matches!(part.then, ModelStage::Transform(_));
        let n_parts = self.parts.iter().position(is_transform);
        let last = if n_parts.is_none() { &self.stages[..] } else { &[] };
        self.parts[..n_parts.map_or(self.parts.len(), |n| n + 1)].iter().flat_map(|part| &part.stages).chain(last)
    }

    /// Returns the recipe for the manifest.
    ///
    /// It has no paths, so that the same work gives the same bytes in any directory.
    ///
    /// # Errors
    /// Bug: the recipe cannot be written as JSON.
    pub fn to_manifest(&self) -> Result<serde_json::Value> {
        let asked = paths::without(&self.asked);
        let raw = RawRecipe {
            model: asked.model,
            output: asked.output,
            calibration: asked.calibration,
            budget: asked.budget,
            stage: asked.stage.into_iter().filter(|stage| stage.kind() != Some(StageKind::Evaluate)).collect(),
            ..RawRecipe::default()
        };
        serde_json::to_value(raw).map_err(|error| Error::bug(format!("the recipe: {error}")))
    }
}

/// Parses the TOML of a recipe without validation.
///
/// # Errors
/// See [`Recipe::from_file`].
pub fn read_raw(path: &Path) -> Result<RawRecipe> {
    text::read(path)
}

/// Prefixes an error about a recipe's value with the path of its file and the line of the key.
pub fn locate(error: Error, path: &Path) -> Error {
    let text = text::read_text(path).unwrap_or_default();
    text::locate(error, &text, path)
}

/// Other names of formats; dense writes plain safetensors.
const OTHER_NAMES: [(&str, &str); 7] = [
    ("safetensors", "dense"),
    ("huggingface", "dense"),
    ("hf", "dense"),
    ("bpk", "burnpack"),
    ("burn", "burnpack"),
    ("vllm", "compressed-tensors"),
    ("transformers", "compressed-tensors"),
];

/// Returns the format with this name.
///
/// # Errors
/// Config: the format is unknown; the message suggests the most similar name.
pub fn profile_of(name: Option<&str>) -> Result<OutputFormat> {
    let Some(name) = name else { return Ok(OutputFormat::default()) };
    let other_name = OTHER_NAMES.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
    let Some((_, format)) = other_name else { return one_of("output.format", name, &OutputFormat::NAMES) };
    let known = OutputFormat::NAMES.map(|(known, _)| known).join(", ");
    let message = format!("output.format: found {name:?}, expected one of {known}; did you mean {format:?}?");
    Err(Error::config(message))
}

/// Returns the format with this name, or the default for a model: ONNX for an ONNX file with other values in the same places.
fn format_for(name: Option<&str>, model: &Path, keeps_places: bool) -> Result<OutputFormat> {
    let is_onnx = model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"));
    match name {
        None if is_onnx && keeps_places => Ok(OutputFormat::Onnx),
        _ => profile_of(name),
    }
}

/// Returns whether codes are entropy-coded; only Briquette's own format supports this.
fn codes_entropy(output: &RawOutput, has_steps: bool, profile: OutputFormat) -> Result<bool> {
    let asked = output.storage.as_deref();
    let asked =
        asked.map(|storage| one_of("output.storage", storage, &[("auto", false), ("entropy", true)])).transpose()?;
    let is_entropy = asked.unwrap_or(has_steps);
    if !is_entropy || profile == OutputFormat::Briquette {
        return Ok(is_entropy);
    }
    let name = profile.name();
    Err(Error::config(match asked {
        Some(_) => format!(
            "output.storage: found \"entropy\" with the format {name}, expected the format briquette, which alone supports it"
        ),
        None => format!(
            "output.format: found {name} with a budget of step sizes, expected the format briquette, which alone stores them; list \
             budget.choices, or export the output"
        ),
    }))
}
