//! The stage that trains a student.

use crate::gradual::Gradual;
use crate::keys::{check_keys, refuse};
use crate::loss::{AskedLoss, LayerChoice, losses_of};
use crate::memory::TrainMemory;
use crate::quantize::QuantizeStage;
use crate::raw::{RawData, RawLayers, RawRecipe, RawStage, RawStudent};
use crate::words::one_of;
use briquette_core::{Error, Patterns, Result};
use briquette_formats::Choice;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Train a student.
#[derive(Debug, Clone)]
pub struct DistillStage {
    /// Which of the things in the model's file is the model.
    pub choice: Choice,
    /// What the student is.
    pub student: Student,
    /// The teacher, where it is not the recipe's model.
    pub teacher: Option<PathBuf>,
    /// The architecture, where files do not tell.
    pub arch: Option<String>,
    /// What goes down.
    pub loss: Vec<AskedLoss>,
    /// What to train and, where it is named, to evaluate on; paths are resolved.
    pub data: RawData,
    /// What training may use.
    pub memory: TrainMemory,
    /// How to train: keys that have their meaning in `briquette-distill`.
    pub training: TrainingSpec,
    /// Tensors that do not learn.
    pub freeze: Patterns,
    /// What is pruned while it learns.
    pub gradual: Option<Gradual>,
    /// The quantize stage whose rounding is in place while it learns.
    pub quantize: Option<QuantizeStage>,
}

/// What a student is.
#[derive(Debug, Clone, PartialEq)]
pub enum Student {
    /// The model as the stages before left it.
    Same,
    /// Some of its layers: how many, and which.
    Layers(Option<usize>, LayerChoice),
    /// Other sizes.
    Sizes(BTreeMap<String, serde_json::Value>),
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingSpec {
    /// Passes over the data.
    pub epochs: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Whether the optimizer is sgd with this momentum, else AdamW.
    pub momentum: Option<f64>,
    /// Weight decay.
    pub weight_decay: f32,
    /// The share of steps in which the learning rate rises.
    pub warmup: f64,
    /// The longest gradient.
    pub clip: f64,
    /// The metric that says which epoch was best.
    pub metric: Option<String>,
    /// Epochs without a better one after which it ends.
    pub patience: Option<usize>,
    /// Steps between checkpoints.
    pub save_every: usize,
    /// Seed of weights and of the order of the data.
    pub seed: u64,
}

impl DistillStage {
    /// What stage `index` of a recipe says, which is a distill stage; the recipe's paths are resolved.
    ///
    /// # Errors
    /// Config, naming the key.
    pub(crate) fn from_raw(recipe: &RawRecipe, index: usize) -> Result<Self> {
        let raw = &recipe.stage[index];
        check_own(raw)?;
        let next = recipe.stage[index + 1..].iter().find(|stage| stage.kind == "quantize");
        let quantize = match (raw.quantization_aware, next) {
            (false, _) => None,
            (true, Some(next)) => Some(QuantizeStage::from_raw(next)?),
            (true, None) => {
                return Err(Error::config("quantization_aware: no quantize stage follows; add one"));
            }
        };
        let stage = Self {
            student: Student::from_raw(raw)?,
            teacher: raw.teacher.clone(),
            choice: recipe.model.choice(),
            arch: recipe.model.arch.clone(),
            data: data_of(recipe, raw)?,
            memory: TrainMemory::from_raw(recipe)?,
            training: TrainingSpec::from_raw(raw)?,
            freeze: Patterns::new(&raw.freeze)?,
            gradual: raw.prune.as_ref().map(Gradual::from_raw).transpose()?,
            quantize,
            loss: losses_of(&raw.loss)?,
        };
        stage.check()?;
        Ok(stage)
    }

    /// Refuses keys that do not go together.
    fn check(&self) -> Result<()> {
        if self.memory.cache_teacher && self.loss.iter().any(|loss| loss.kind.looks_inside()) {
            let message = "hidden states and attention are too large to keep; remove it, or those losses";
            return Err(Error::config(message).at("memory.cache_teacher"));
        }
        if self.training.patience.is_some() && self.training.metric.is_none() {
            return Err(Error::config("patience: no metric is watched; name one"));
        }
        Ok(())
    }
}

/// The keys of such a stage.
const KEYS: [&str; 19] = [
    "student",
    "n_layers",
    "layers",
    "teacher",
    "loss",
    "epochs",
    "learning_rate",
    "optimizer",
    "weight_decay",
    "momentum",
    "warmup",
    "clip",
    "metric",
    "patience",
    "save_every",
    "seed",
    "freeze",
    "prune",
    "quantization_aware",
];

/// Refuses the keys of other kinds, also those by which they choose tensors.
fn check_own(raw: &RawStage) -> Result<()> {
    check_keys(raw, &KEYS)?;
    refuse("include", &raw.include, "distill")?;
    refuse("exclude", &raw.exclude.first(), "distill")?;
    refuse("roles", &raw.roles, "distill")
}

/// The data, which must be there to train on.
fn data_of(recipe: &RawRecipe, raw: &RawStage) -> Result<RawData> {
    let data = recipe.data.clone().unwrap_or_default();
    if data.train.is_none() {
        return Err(Error::config("data.train: missing; name the data to train on"));
    }
    if raw.metric.is_some() && data.eval.is_none() && data.select.is_none() {
        return Err(Error::config("metric: there is no data to measure it on; name data.eval or data.select"));
    }
    Ok(data)
}

/// Refuses data to choose by that nothing is chosen by, or that the result is reported on.
///
/// # Errors
/// Config, naming the key.
pub(crate) fn check_select(raw: &RawRecipe) -> Result<()> {
    let Some(data) = raw.data.as_ref().filter(|data| data.select.is_some()) else { return Ok(()) };
    if !raw.stage.iter().any(|stage| stage.kind == "distill" && stage.metric.is_some()) {
        let message = "no distill stage of this recipe has a metric to choose an epoch by; add one, or remove it";
        return Err(Error::config(format!("data.select: {message}")));
    }
    if data.select == data.eval {
        let message = "it is the data that the result is reported on (data.eval); name other data, or remove it";
        return Err(Error::config(format!("data.select: {message}")));
    }
    Ok(())
}

impl Student {
    fn from_raw(raw: &RawStage) -> Result<Self> {
        let refuse_layers = |student: &str| {
            refuse("n_layers", &raw.n_layers, &format!("distill (student {student})"))?;
            refuse("layers", &raw.layers, &format!("distill (student {student})"))
        };
        match &raw.student {
            Some(RawStudent::Sizes(sizes)) => refuse_layers("of other sizes").map(|()| Self::Sizes(sizes.clone())),
            None => refuse_layers("self").map(|()| Self::Same),
            Some(RawStudent::Name(name)) => match one_of("student", name, &[("self", true), ("layers", false)])? {
                true => refuse_layers("self").map(|()| Self::Same),
                false if raw.n_layers.is_none() && !matches!(raw.layers, Some(RawLayers::List(_))) => {
                    Err(Error::config("n_layers: missing; say how many layers the student has, or list them as layers"))
                }
                false => Ok(Self::Layers(raw.n_layers, LayerChoice::from_raw(raw.layers.as_ref())?)),
            },
        }
    }
}

impl TrainingSpec {
    fn from_raw(raw: &RawStage) -> Result<Self> {
        let optimizer = raw.optimizer.as_deref().unwrap_or("adamw");
        let is_sgd = one_of("optimizer", optimizer, &[("adamw", false), ("sgd", true)])?;
        if !is_sgd {
            refuse("momentum", &raw.momentum, "distill (with adamw)")?;
        }
        Ok(Self {
            epochs: raw.epochs.unwrap_or(1),
            learning_rate: raw.learning_rate.unwrap_or(5e-5),
            momentum: is_sgd.then(|| raw.momentum.unwrap_or(0.9)),
            weight_decay: raw.weight_decay.unwrap_or(0.0),
            warmup: raw.warmup.unwrap_or(0.1),
            clip: raw.clip.unwrap_or(1.0),
            metric: raw.metric.clone(),
            patience: raw.patience,
            save_every: raw.save_every.unwrap_or(200),
            seed: raw.seed.unwrap_or(0),
        })
    }
}
