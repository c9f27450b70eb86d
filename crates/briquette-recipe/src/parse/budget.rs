//! Size budgets, bit budgets and quality budgets.

use crate::parse::choice::SchemeChoice;
use crate::parse::distill::Student;
use crate::parse::evaluate::Bounds;
use crate::parse::kind::StageKind;
use crate::parse::memory::{bytes_of, without_unit};
use crate::parse::raw::{RawBudget, RawRecipe};
use crate::parse::stage::{RecipePart, Stage};
use crate::parse::words::one_of;
use briquette_core::{Error, Patterns, Result};
use briquette_methods::quant::Rounding;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Default number of items that measure sensitivity.
const N_SAMPLES: usize = 64;

/// The smallest budget that may be a plain number of bytes without a unit.
const MIN_BYTES: u64 = 1000;

/// The budget that chooses step sizes or schemes of tensors.
#[derive(Debug, Clone)]
pub struct Budget {
    /// The bound on the size or the quality of the output.
    pub target: Target,
    /// How the sensitivity of each tensor is found.
    pub sensitivity: Sensitivity,
    /// Whether a tensor may get a step size.
    pub has_steps: bool,
    /// Whether the codes of step sizes are chosen on a trellis.
    pub has_trellis: bool,
    /// Schemes that a tensor may get, dense or pruned.
    pub schemes: Vec<SchemeChoice>,
    /// The tensors that a training with the step sizes freezes; `None` without such a training.
    pub frozen: Option<Patterns>,
    /// The tensors that a training with the step sizes drops: their bytes do not count.
    pub dropped: BTreeSet<String>,
}

/// The bound on the size or the quality of an output.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// The largest number of bytes of all weight files.
    Bytes(u64),
    /// The largest mean number of bits per weight of the tensors that the budget covers.
    Bits(f64),
    /// Bounds of metrics; the run searches for the smallest output within them.
    Metrics(Bounds),
}

impl Target {
    /// Reads the target from the keys of a budget.
    fn from_raw(keys: &RawBudget, raw: &RawRecipe) -> Result<Self> {
        let has_bounds = !keys.min.is_empty() || !keys.max.is_empty();
        let given = [("bytes", keys.bytes.is_some()), ("bits", keys.bits.is_some()), ("min", has_bounds)];
        let given: Vec<&str> = given.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect();
        if let [first, second, ..] = given[..] {
            let message = format!("budget.{second}: budget.{first} already sets the budget; remove one of the two");
            return Err(Error::config(message));
        }
        match (&keys.bytes, keys.bits) {
            (Some(text), _) => match bytes_of("budget.bytes", text)? {
                // A number this small is shorter than a file header, so its unit is missing.
                0..MIN_BYTES if text.trim().parse::<f64>().is_ok() => Err(without_unit("budget.bytes", text)),
                bytes => Ok(Self::Bytes(bytes)),
            },
            (_, Some(bits)) => Ok(Self::Bits(bits)),
            _ if has_bounds && raw.gate.is_some() => {
                Err(Error::config("gate: the budget already has bounds of metrics; remove one of the two"))
            }
            _ if has_bounds && raw.has(StageKind::Evaluate) => {
                Ok(Self::Metrics(Bounds { min: keys.min.clone(), max: keys.max.clone() }))
            }
            _ if has_bounds => Err(Error::config(
                "budget.min: no evaluate stage measures metrics; add one at the end, and set its data as data.eval",
            )),
            _ => Err(Error::config("budget.bytes: missing; set a size such as \"9.4MB\", or a quality as budget.min")),
        }
    }
}

/// How the sensitivity of a tensor is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sensitivity {
    /// From the curvature of the loss: one forward and one backward pass over the items.
    Gradient {
        /// Number of items.
        n_samples: usize,
    },
    /// From the loss increase with only this tensor quantized.
    Measured {
        /// Number of items that run for each tensor.
        n_samples: usize,
        /// The loss to measure; `None` for the default of the task.
        loss: Option<MeasuredLoss>,
    },
    /// From the relative squared error of the layer outputs, or of the weights if the layer inputs are unknown.
    Relative,
    /// From a file that `briquette sensitivity` wrote.
    File(PathBuf),
}

/// The loss of measured sensitivities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasuredLoss {
    /// One minus the cosine similarity of the outputs.
    Cosine,
    /// The KL divergence from the uncompressed model.
    Kl,
    /// The metric of the task.
    Metric,
}

impl MeasuredLoss {
    const ALL: [(&str, Self); 3] = [("cosine", Self::Cosine), ("kl", Self::Kl), ("metric", Self::Metric)];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, loss)| *loss == self).map_or("", |(name, _)| name)
    }
}

impl Sensitivity {
    /// The names of the methods in recipes.
    pub const NAMES: [&str; 3] = ["gradient", "measured", "relative"];

    /// Returns whether the method runs the model.
    pub fn runs_model(&self) -> bool {
        matches!(self, Self::Gradient { .. } | Self::Measured { .. })
    }

    /// Reads the method from a recipe with resolved paths.
    fn from_raw(keys: &RawBudget, has_data: bool) -> Result<Self> {
        if let Some(path) = &keys.sensitivity_file {
            let given = [
                ("sensitivity", keys.sensitivity.is_some()),
                ("samples", keys.samples.is_some()),
                ("loss", keys.loss.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(Error::config(format!(
                    "budget.{key}: has no effect with budget.sensitivity_file; remove one of the two"
                ))),
                None => Ok(Self::File(path.clone())),
            };
        }
        let n_samples = keys.samples.unwrap_or(N_SAMPLES);
        let loss = keys.loss.as_ref().map(|name| one_of("budget.loss", name, &MeasuredLoss::ALL)).transpose()?;
        let all = [
            (Self::NAMES[0], Self::Gradient { n_samples }),
            (Self::NAMES[1], Self::Measured { n_samples, loss }),
            (Self::NAMES[2], Self::Relative),
        ];
        let found = match &keys.sensitivity {
            Some(name) => one_of("budget.sensitivity", name, &all)?,
            None if has_data => Self::Gradient { n_samples },
            None => Self::Relative,
        };
        match found {
            Self::Relative if keys.samples.is_some() => {
                Err(Error::config("budget.samples: relative sensitivities run no data; remove it"))
            }
            Self::Gradient { .. } | Self::Relative if loss.is_some() => {
                Err(Error::config("budget.loss: only measured sensitivities use it; remove it, or choose \"measured\""))
            }
            Self::Gradient { .. } | Self::Measured { .. } if !has_data => {
                Err(Error::config("budget.sensitivity: needs data; set calibration.data, or choose \"relative\""))
            }
            found => Ok(found),
        }
    }
}

impl Budget {
    /// Returns whether a tensor stays as it is rounded, so that its rows may have steps of their own.
    pub fn keeps_rounded(&self, name: &str) -> bool {
        self.frozen.as_ref().is_none_or(|frozen| frozen.matches(name))
    }

    /// Reads the budget of a recipe and checks it against the stages.
    ///
    /// Returns `None` if the recipe has no budget and no stage needs one.
    ///
    /// # Errors
    /// Config: a key is invalid, or the budget does not fit the stages.
    pub(crate) fn from_raw(raw: &RawRecipe, parts: &[RecipePart], stages: &[Stage]) -> Result<Option<Self>> {
        let is_open = |stage: &Stage| matches!(stage, Stage::Quantize(stage) if stage.is_open());
        let is_early = parts.iter().flat_map(|part| &part.stages).any(is_open);
        let keys = raw.budget.as_ref().filter(|_| !is_early);
        let Some(keys) = keys else {
            return match is_early || stages.iter().any(is_open) {
                true => Err(Error::config(
                    "scheme: found step without a size; write it, as in \"step0.01\", or set budget.bytes, which chooses step sizes for the last stages",
                )),
                false => Ok(None),
            };
        };
        let learner = parts.iter().find(|part| part.learns_steps()).and_then(|part| part.then.as_distill());
        let frozen = learner.map(|stage| stage.freeze.clone());
        if learner.is_some() {
            check_learned(parts, keys)?;
        }
        if !stages.iter().any(is_open) {
            let message = "none of the last stages has step sizes to choose; add a quantize stage with scheme = \"step\" or \"step-dynamic\"";
            return Err(Error::config(format!("budget: {message}")));
        }
        let (has_steps, schemes) = choices_of(keys)?;
        check_pruned(&schemes, has_steps, raw)?;
        if has_steps && raw.output.storage.as_deref().is_some_and(|storage| storage != "entropy") {
            return Err(Error::config(
                "output.storage: a budget with step sizes always uses entropy coding; remove it",
            ));
        }
        let has_trellis = trellis_of(keys, has_steps, stages)?;
        let has_data = raw.calibration.as_ref().is_some_and(|keys| keys.data.is_some());
        let sensitivity = Sensitivity::from_raw(keys, has_data)?;
        let target = Target::from_raw(keys, raw)?;
        Ok(Some(Self { target, sensitivity, has_steps, has_trellis, schemes, frozen, dropped: BTreeSet::new() }))
    }
}

/// Returns whether tensors may get step sizes, and the schemes that they may get.
fn choices_of(keys: &RawBudget) -> Result<(bool, Vec<SchemeChoice>)> {
    let Some(names) = &keys.choices else { return Ok((true, Vec::new())) };
    if names.is_empty() {
        return Err(Error::config(
            "budget.choices: found an empty list; list the schemes to choose from, as in [\"int8\", \"int4-g64\"]",
        ));
    }
    let (steps, named): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| *name == "step");
    Ok((!steps.is_empty(), named.iter().map(|name| SchemeChoice::parse(name)).collect::<Result<_>>()?))
}

/// Returns whether the codes of step sizes are chosen on a trellis.
fn trellis_of(keys: &RawBudget, has_steps: bool, stages: &[Stage]) -> Result<bool> {
    let names = keys.experimental.iter().map(|name| one_of("budget.experimental", name, &[("trellis", ())]));
    names.collect::<Result<Vec<()>>>()?;
    let updates =
        |stage: &Stage| matches!(stage, Stage::Quantize(stage) if stage.rounding == Rounding::Gptq && !stage.learns);
    let message = match () {
        () if keys.experimental.is_empty() => return Ok(false),
        () if !has_steps => "only step sizes have a trellis; add \"step\" to budget.choices",
        () if !stages.iter().any(updates) => {
            "a trellis needs round = \"gptq\" without reconstruct; set calibration.data"
        }
        () => return Ok(true),
    };
    Err(Error::config(format!("budget.experimental: {message}")))
}

/// Refuses pruned schemes with entropy-coded storage, where zeros need almost no bits anyway.
fn check_pruned(schemes: &[SchemeChoice], has_steps: bool, raw: &RawRecipe) -> Result<()> {
    let is_coded = has_steps || raw.output.storage.as_deref() == Some("entropy");
    let Some(choice) = schemes.iter().find(|choice| is_coded && choice.pruned.is_some()) else { return Ok(()) };
    let message = "prunes, but entropy-coded zeros need almost no bits anyway; remove it, or";
    let other = if has_steps { "\"step\"" } else { "output.storage" };
    Err(Error::config(format!("budget.choices: {:?} {message} {other}", choice.name)))
}

/// Refuses stages and keys that do not work with training on the step sizes of a budget.
fn check_learned(parts: &[RecipePart], keys: &RawBudget) -> Result<()> {
    if keys.choices.iter().flatten().any(|name| name != "step") {
        let message = "budget.choices: quantization-aware training supports \"step\" only; remove the other schemes";
        return Err(Error::config(message));
    }
    let is_same = |part: &RecipePart| part.then.as_distill().is_some_and(|stage| stage.student == Student::Same);
    if parts.len() != 1 || !parts.iter().all(|part| part.stages.is_empty() && is_same(part)) {
        let message = "with a budget, the recipe must begin with its only distill stage, with student \"self\", and have no factorize, shrink or fold stage; \
                       change the stages, write step sizes, as in \"step0.01\", or remove quantization_aware";
        return Err(Error::config(format!("quantization_aware: {message}")));
    }
    if !keys.min.is_empty() || !keys.max.is_empty() {
        let message = "the quality after training is not known in advance; set budget.bytes or budget.bits";
        return Err(Error::config(format!("budget.min: {message}")));
    }
    Ok(())
}

/// Returns whether the recipe's budget runs the model on calibration data.
pub(crate) fn runs_model(raw: &RawRecipe) -> bool {
    let is_run = |keys: &RawBudget| keys.sensitivity_file.is_none() && keys.sensitivity.as_deref() != Some("relative");
    raw.budget.as_ref().is_some_and(is_run)
}
