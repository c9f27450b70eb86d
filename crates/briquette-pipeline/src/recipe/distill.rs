//! The stage that trains a student.

use super::raw::{RawLayers, RawLoss, RawRecipe, RawStage, RawStudent};
use super::{BatchSize, Gradual, QuantizeStage, check_keys, one_of, refuse};
use crate::recipe::evaluate::{BATCH_SIZE, bytes_of};
use briquette_core::{Error, Patterns, Result};
use briquette_formats::{Checkpoint, Choice};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Train a student. What losses are made of is judged by `briquette-distill`, before any work.
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
    pub loss: Vec<RawLoss>,
    /// What to train and, where it is named, to evaluate on; paths are resolved.
    pub data: super::raw::RawData,
    /// What training may use.
    pub memory: TrainMemory,
    /// How to train: keys that have their meaning in `briquette-distill`.
    pub training: Training,
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
    Layers(Option<usize>, Option<RawLayers>),
    /// Other sizes.
    Sizes(BTreeMap<String, serde_json::Value>),
}

/// What training may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainMemory {
    /// The most bytes.
    pub limit: Option<u64>,
    /// Items in memory at once, at most.
    pub batch_size: usize,
    /// Whether it was left to the memory there is.
    pub is_auto: bool,
    /// Batches of one step.
    pub accumulate: usize,
    /// Whether cheap tensors are made again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Whether the teacher is asked once for each item.
    pub cache_teacher: bool,
    /// What networks compute in.
    pub dtype: Dtype,
}

/// What networks compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// f32.
    #[default]
    F32,
    /// bf16; trained over weights in f32.
    Bf16,
    /// f16; trained over weights in f32, with loss scaling.
    F16,
}

#[cfg(feature = "model")]
impl Dtype {
    /// The half precision it is, if it is one.
    pub(crate) fn half(self) -> Option<burn::tensor::FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(burn::tensor::FloatDType::BF16),
            Self::F16 => Some(burn::tensor::FloatDType::F16),
        }
    }
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
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
    /// Opens the teacher, which is the original where none is named.
    ///
    /// # Errors
    /// As [`Checkpoint::open_as`].
    pub fn open_teacher(&self, original: &Path) -> Result<Checkpoint> {
        match &self.teacher {
            Some(teacher) => Checkpoint::open(teacher),
            None => Checkpoint::open_as(original, &self.choice),
        }
    }

    /// What stage `index` of a recipe says, which is a distill stage; the recipe's paths are resolved.
    ///
    /// # Errors
    /// Config, naming the key.
    pub(super) fn from_raw(recipe: &RawRecipe, index: usize) -> Result<Self> {
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
            loss: raw.loss.clone(),
            data: data_of(recipe, raw)?,
            memory: TrainMemory::from_raw(recipe)?,
            training: Training::from_raw(raw)?,
            freeze: Patterns::new(&raw.freeze)?,
            gradual: raw.prune.as_ref().map(Gradual::from_raw).transpose()?,
            quantize,
        };
        crate::distill::check(&stage)?;
        Ok(stage)
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
fn data_of(recipe: &RawRecipe, raw: &RawStage) -> Result<super::raw::RawData> {
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
pub(super) fn check_select(raw: &RawRecipe) -> Result<()> {
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
                false => Ok(Self::Layers(raw.n_layers, raw.layers.clone())),
            },
        }
    }
}

impl TrainMemory {
    pub(super) fn from_raw(recipe: &RawRecipe) -> Result<Self> {
        let memory = recipe.memory.clone().unwrap_or_default();
        let dtypes = [("f32", Dtype::F32), ("bf16", Dtype::Bf16), ("f16", Dtype::F16)];
        let batch_size = memory.batch_size.map(BatchSize::try_from).transpose()?.unwrap_or_default();
        Ok(Self {
            limit: memory.limit.as_deref().map(|text| bytes_of("memory.limit", text)).transpose()?,
            batch_size: match batch_size {
                BatchSize::Of(n) => n,
                // As many of the usual number as fit the limit; the rest of a batch is accumulated.
                BatchSize::Auto => BATCH_SIZE,
            },
            is_auto: matches!(batch_size, BatchSize::Auto),
            accumulate: memory.accumulate.unwrap_or(1),
            gradient_checkpointing: memory.gradient_checkpointing,
            cache_teacher: memory.cache_teacher,
            dtype: one_of("memory.dtype", memory.dtype.as_deref().unwrap_or("f32"), &dtypes)?,
        })
    }
}

impl Training {
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
