//! The stage that trains a student.

use crate::parse::gradual::Gradual;
use crate::parse::loss::{AskedLoss, LayerChoice, losses_of};
use crate::parse::memory::TrainMemory;
use crate::parse::quantize::{QuantizeStage, RawQuantize};
use crate::parse::raw::{RawCalibration, RawData, RawGradual, RawLayers, RawLoss, RawMemory, RawModel, RawStudent};
use crate::parse::words::{one_of, refuse};
use briquette_core::{Error, Patterns, Result};
use briquette_formats::Choice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The keys of a distill stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawDistill {
    /// distill: "self" (the default) is the model as the stages before left it; "layers" is some of its layers; a table is
    /// other sizes of its config.json, with random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub student: Option<RawStudent>,
    /// distill, student "layers": how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_layers: Option<usize>,
    /// distill, student "layers": "every" (the default), "first", "last", or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<RawLayers>,
    /// distill: the teacher's file, index or directory; the recipe's model when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<PathBuf>,
    /// distill: what goes down, each with its weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss: Vec<RawLoss>,
    /// distill: passes over the data (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// distill: the highest learning rate (5e-5); it falls along half a cosine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// distill: "adamw" (the default) or "sgd".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// distill: weight decay (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// distill: momentum of sgd (0.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// distill: the share of steps in which the learning rate rises (0.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<f64>,
    /// distill: the longest that the gradient of all weights may be (1); longer ones are scaled down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// distill: the metric of the evaluation that says which epoch was best; without it the last epoch counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// distill: epochs without a better metric after which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// distill: steps between checkpoints (200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<usize>,
    /// distill: seed of weights and of the order of the data (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// distill: globs over tensor names that do not learn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// distill: drop weights little by little while the student learns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<RawGradual>,
    /// distill: train with the rounding of the quantize stage that follows in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quantization_aware: bool,
    /// distill: whether the student's dropout is on while it learns (true). One that starts with the weights of its teacher hardly needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<bool>,
    /// distill, quantization_aware with steps: what a bit of each rounded weight counts beside the losses (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

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
    /// The losses whose weighted sum the training makes smaller.
    pub loss: Vec<AskedLoss>,
    /// What to train and, where it is named, to evaluate on; paths are resolved.
    pub data: RawData,
    /// What training may use.
    pub memory: TrainMemory,
    /// How to train.
    pub training: TrainingSpec,
    /// Patterns of tensors that keep the weights they start with.
    pub freeze: Patterns,
    /// What is pruned while it learns.
    pub gradual: Option<Gradual>,
    /// The quantize stage whose rounding is in place while it learns.
    pub quantize: Option<QuantizeStage>,
    /// What a bit of each rounded weight counts beside the losses.
    pub rate: Option<f64>,
    /// Whether the student's dropout is on while it learns.
    pub has_dropout: bool,
}

/// What a student is.
#[derive(Debug, Clone, PartialEq)]
pub enum Student {
    /// As large as the model that the stages before left, and starting with its weights.
    Same,
    /// Some layers of that model: how many, where that is said, and which.
    Layers(Option<usize>, LayerChoice),
    /// Of other sizes, by the keys of config.json, with random weights.
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
    /// The longest that the gradient of all weights may be.
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

/// The tables beside the stages that a training looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) model: &'a RawModel,
    pub(crate) data: Option<&'a RawData>,
    pub(crate) memory: Option<&'a RawMemory>,
    pub(crate) calibration: Option<&'a RawCalibration>,
}

impl RawDistill {
    /// What it says, in words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let pruned = self.prune.as_ref().and_then(|prune| Some(format!("pruned to {}", prune.sparsity?)));
        let epochs = self.epochs.map(|epochs| format!("epochs {epochs}"));
        [self.student.as_ref().map(RawStudent::in_words), pruned, epochs].into_iter().flatten().collect()
    }
}

impl DistillStage {
    /// What a stage of a recipe with resolved paths says; `next` is the quantize stage that follows.
    ///
    /// # Errors
    /// Config, naming the key.
    pub(crate) fn from_raw(raw: &RawDistill, around: Around, next: Option<&RawQuantize>) -> Result<Self> {
        let quantize = match (raw.quantization_aware, next) {
            (false, _) => None,
            (true, Some(next)) => Some(QuantizeStage::from_raw(next, around.calibration)?),
            (true, None) => {
                return Err(Error::config("quantization_aware: no quantize stage follows; add one"));
            }
        };
        let stage = Self {
            student: Student::from_raw(raw)?,
            teacher: raw.teacher.clone(),
            choice: around.model.choice(),
            arch: around.model.arch.clone(),
            data: data_of(around.data, raw)?,
            memory: TrainMemory::from_raw(around.memory)?,
            training: TrainingSpec::from_raw(raw)?,
            freeze: Patterns::new(&raw.freeze)?,
            gradual: raw.prune.as_ref().map(Gradual::from_raw).transpose()?,
            quantize,
            rate: raw.rate,
            has_dropout: raw.dropout.unwrap_or(true),
            loss: losses_of(&raw.loss)?,
        };
        stage.check()?;
        Ok(stage)
    }

    /// Refuses keys of which one makes no sense with, or without, another.
    fn check(&self) -> Result<()> {
        if self.memory.cache_teacher && self.loss.iter().any(|loss| loss.kind.looks_inside()) {
            let message = "hidden states and attention are too large to keep; remove it, or those losses";
            return Err(Error::config(message).at("memory.cache_teacher"));
        }
        if self.training.patience.is_some() && self.training.metric.is_none() {
            return Err(Error::config("patience: no metric is watched; name one"));
        }
        if self.rate.is_some() && self.quantize.is_none() {
            return Err(Error::config(
                "rate: no rounding is in place; set quantization_aware, with steps, or remove it",
            ));
        }
        Ok(())
    }
}

/// The data, refused where there is none to train on, or none to measure the metric on.
fn data_of(data: Option<&RawData>, raw: &RawDistill) -> Result<RawData> {
    let data = data.cloned().unwrap_or_default();
    if data.train.is_none() {
        return Err(Error::config("data.train: missing; name the data to train on"));
    }
    if raw.metric.is_some() && data.eval.is_none() && data.select.is_none() {
        return Err(Error::config("metric: there is no data to measure it on; name data.eval or data.select"));
    }
    Ok(data)
}

impl Student {
    fn from_raw(raw: &RawDistill) -> Result<Self> {
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
    fn from_raw(raw: &RawDistill) -> Result<Self> {
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
