//! The distill stage: trains a student.

use crate::parse::gradual::Gradual;
use crate::parse::loss::{AskedLoss, LayerChoice, LossKind, losses_of};
use crate::parse::memory::{Dtype, TrainMemory};
use crate::parse::quantize::{QuantizeStage, RawQuantize};
use crate::parse::raw::{
    RawCalibration, RawData, RawGradual, RawLayers, RawLayout, RawLoss, RawMemory, RawModel, RawStudent,
};
use crate::parse::words::{one_of, refuse};
use briquette_core::{Error, Patterns, Result};
use briquette_formats::{Choice, WeightLayout};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The keys of a distill stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawDistill {
    /// distill: the student: "self", "layers" or a table. "self" (the default) is the model that the earlier
    /// stages produced. "layers" keeps some of its layers. A table overrides sizes in its config.json and
    /// starts from random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub student: Option<RawStudent>,
    /// distill, student "layers": number of layers to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_layers: Option<usize>,
    /// distill, student "layers": which layers to keep: "every" (the default, evenly spaced), "first", "last"
    /// or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<RawLayers>,
    /// distill: the teacher: a file, index or directory; the recipe's model by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<PathBuf>,
    /// distill, with teacher: the layout of the teacher's Linear weights, "torch" or "burn". It is not needed
    /// for files that contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_layout: Option<RawLayout>,
    /// distill: the losses to minimize, each with a weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss: Vec<RawLoss>,
    /// distill: number of epochs (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// distill: the peak learning rate (5e-5); it decays with half a cosine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// distill: "adamw" (the default) or "sgd".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// distill: weight decay of the optimizer (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// distill: momentum of SGD (0.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// distill: the share of steps used for learning rate warmup (0.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<f64>,
    /// distill: the largest gradient norm over all weights (1); larger gradients are scaled down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// distill: the evaluation metric that chooses the best epoch; without it, the last epoch is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// distill: stop after this many epochs without a better metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// distill: number of steps between checkpoints (200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<usize>,
    /// distill: seed for weight initialization and data order (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// distill: what is trained: "weights" (the default), or "scales": the scales of rows or groups of a quantized model, whose codes stay.
    /// Such a stage comes last, after the quantize stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<String>,
    /// distill: globs over the names of tensors to freeze.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// distill: gradual pruning during training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<RawGradual>,
    /// distill: quantization-aware training for the next quantize stage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quantization_aware: bool,
    /// distill: whether dropout is active in the student during training (true). A student that starts from its
    /// teacher's weights rarely needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<bool>,
    /// distill: the mean and variance of batch norms during training: those of each "batch" (the default), which also change the stored
    /// ones, or the "stored" ones, which stay (the default with quantization_aware).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_norm: Option<String>,
    /// distill, decoders: the share of batches that the student samples itself (0). The first half of a window is
    /// the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_policy: Option<f64>,
    /// distill, on_policy: the number of tokens to sample after each prompt (half of a window).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<usize>,
    /// distill, quantization_aware with step sizes: weight of the bits per quantized weight in the training
    /// loss (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

/// A stage that trains a student.
#[derive(Debug, Clone)]
pub struct DistillStage {
    /// Which entry of the model's file is the model.
    pub choice: Choice,
    /// The student to train.
    pub student: Student,
    /// The teacher, if it is not the recipe's model.
    pub teacher: Option<PathBuf>,
    /// The layout of the teacher's Linear weights, if the recipe sets it.
    pub teacher_layout: Option<WeightLayout>,
    /// The architecture, if the recipe sets it.
    pub arch: Option<String>,
    /// The losses; training minimizes their weighted sum.
    pub loss: Vec<AskedLoss>,
    /// The training data and, if set, the evaluation data; paths are resolved.
    pub data: RawData,
    /// Memory settings of the training.
    pub memory: TrainMemory,
    /// Optimizer, learning rate and schedule.
    pub training: TrainingSpec,
    /// Whether only the scales of codes are trained.
    pub trains_scales: bool,
    /// Patterns of frozen tensors.
    pub freeze: Patterns,
    /// Gradual pruning during training.
    pub gradual: Option<Gradual>,
    /// The quantize stage of quantization-aware training.
    pub quantize: Option<QuantizeStage>,
    /// Weight of the bits per quantized weight in the training loss.
    pub rate: Option<f64>,
    /// The share of batches that the student samples itself.
    pub on_policy: f64,
    /// The number of tokens to sample; half of a window if `None`.
    pub max_new_tokens: Option<usize>,
    /// Whether dropout is active in the student during training.
    pub has_dropout: bool,
    /// Whether batch norms use their stored statistics during training, and keep them.
    pub keeps_statistics: bool,
}

/// The kind of student.
#[derive(Debug, Clone, PartialEq)]
pub enum Student {
    /// The model that the earlier stages produced, with its weights.
    Same,
    /// Some layers of that model: how many, if set, and which.
    Layers(Option<usize>, LayerChoice),
    /// A model with other sizes in config.json and random weights.
    Sizes(BTreeMap<String, serde_json::Value>),
}

/// Optimizer, learning rate and schedule of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingSpec {
    /// Number of epochs.
    pub epochs: usize,
    /// The peak learning rate.
    pub learning_rate: f64,
    /// The momentum of SGD; `None` for AdamW.
    pub momentum: Option<f64>,
    /// Weight decay of the optimizer.
    pub weight_decay: f32,
    /// The share of steps used for learning rate warmup.
    pub warmup: f64,
    /// The largest gradient norm over all weights.
    pub clip: f64,
    /// The metric that chooses the best epoch.
    pub metric: Option<String>,
    /// Number of epochs without a better metric after which training stops.
    pub patience: Option<usize>,
    /// Number of steps between checkpoints.
    pub save_every: usize,
    /// Seed for weight initialization and data order.
    pub seed: u64,
}

/// The other tables of the recipe that a training uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) model: &'a RawModel,
    pub(crate) data: Option<&'a RawData>,
    pub(crate) memory: Option<&'a RawMemory>,
    pub(crate) calibration: Option<&'a RawCalibration>,
}

impl RawDistill {
    /// Returns whether the stage trains the scales of codes.
    pub(crate) fn trains_scales(&self) -> bool {
        self.train.as_deref() == Some("scales")
    }

    /// Returns the settings of the stage in short words.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let pruned = self.prune.as_ref().and_then(|prune| Some(format!("pruned to {}", prune.sparsity?)));
        let epochs = self.epochs.map(|epochs| format!("epochs {epochs}"));
        let scales = self.trains_scales().then(|| "scales".to_string());
        [self.student.as_ref().map(RawStudent::in_words), scales, pruned, epochs].into_iter().flatten().collect()
    }
}

impl DistillStage {
    /// Validates the keys of a distill stage with resolved paths; `next` is the following quantize stage.
    ///
    /// # Errors
    /// Config: a key is missing, invalid or without effect.
    pub(crate) fn from_raw(raw: &RawDistill, around: Around, next: Option<&RawQuantize>) -> Result<Self> {
        let quantize = match (raw.quantization_aware, next) {
            (false, _) => None,
            (true, Some(next)) if next.scales_columns() => {
                let message =
                    "training does not know the scales of columns; remove column_scales from the quantize stage";
                return Err(Error::config(format!("quantization_aware: {message}")));
            }
            (true, Some(next)) if next.corrects_biases() => {
                let message =
                    "the training fits biases to rounded weights; remove bias_correction from the quantize stage";
                return Err(Error::config(format!("quantization_aware: {message}")));
            }
            (true, Some(next)) => Some(QuantizeStage::from_raw(next, around.calibration, true)?),
            (true, None) => {
                return Err(Error::config("quantization_aware: no quantize stage follows; add one"));
            }
        };
        let stage = Self {
            student: Student::from_raw(raw)?,
            teacher: raw.teacher.clone(),
            teacher_layout: raw.teacher_layout.map(RawLayout::said),
            choice: around.model.choice(),
            arch: around.model.arch.clone(),
            data: data_of(around.data, raw)?,
            memory: TrainMemory::from_raw(around.memory)?,
            training: TrainingSpec::from_raw(raw)?,
            trains_scales: match &raw.train {
                Some(name) => one_of("train", name, &[("weights", false), ("scales", true)])?,
                None => false,
            },
            freeze: Patterns::new(&raw.freeze)?,
            gradual: raw.prune.as_ref().map(Gradual::from_raw).transpose()?,
            quantize,
            rate: raw.rate,
            on_policy: raw.on_policy.unwrap_or(0.0),
            max_new_tokens: raw.max_new_tokens,
            has_dropout: raw.dropout.unwrap_or(!raw.trains_scales()),
            keeps_statistics: match &raw.batch_norm {
                Some(name) => one_of("batch_norm", name, &[("batch", false), ("stored", true)])?,
                None => raw.quantization_aware || raw.trains_scales(),
            },
            loss: losses_of(&raw.loss)?,
        };
        stage.check()?;
        stage.check_scales(raw)?;
        Ok(stage)
    }

    /// Returns whether a loss compares the student with a teacher.
    pub(crate) fn has_teacher(&self) -> bool {
        self.loss.iter().any(|loss| !matches!(loss.kind, LossKind::Labels(_)))
    }

    /// Refuses combinations of keys that do not work together.
    fn check(&self) -> Result<()> {
        if self.memory.cache_teacher && self.loss.iter().any(|loss| loss.kind.looks_inside()) {
            let message = "hidden states and attention are too large to cache; remove it, or the losses of these kinds";
            return Err(Error::config(message).at("memory.cache_teacher"));
        }
        if self.teacher_layout.is_some() && self.teacher.is_none() {
            let message = "only applies to a teacher with its own path; set teacher, or set model.layout instead";
            return Err(Error::config(message).at("teacher_layout"));
        }
        if self.training.patience.is_some() && self.training.metric.is_none() {
            return Err(Error::config("patience: needs a metric; set metric"));
        }
        self.check_on_policy()?;
        if self.rate.is_some() && self.quantize.is_none() {
            return Err(Error::config(
                "rate: needs quantization-aware training; set quantization_aware = true, or remove it",
            ));
        }
        Ok(())
    }

    /// Refuses keys that a training of scales alone cannot use.
    fn check_scales(&self, raw: &RawDistill) -> Result<()> {
        if !self.trains_scales {
            return Ok(());
        }
        let key = match () {
            () if self.student != Student::Same => "student",
            () if raw.prune.is_some() => "prune",
            () if raw.quantization_aware => "quantization_aware",
            () if raw.rate.is_some() => "rate",
            () if !self.keeps_statistics => "batch_norm",
            () if self.memory.dtype != Dtype::F32 => "memory.dtype",
            () => return Ok(()),
        };
        let message = "has no effect on the scales of codes; remove it, or train = \"scales\"";
        Err(Error::config(message).at(key))
    }

    /// Refuses keys that sampled batches cannot use.
    fn check_on_policy(&self) -> Result<()> {
        if self.on_policy == 0.0 {
            return refuse("max_new_tokens", &self.max_new_tokens, "distill stage without on_policy");
        }
        let has_labels = self.loss.iter().any(|loss| matches!(loss.kind, LossKind::Labels(_)));
        let message = match (has_labels, self.memory.cache_teacher) {
            (true, _) => "sampled text has no labels; remove it, or the labels loss",
            (_, true) => "a cached teacher has no outputs for sampled text; remove it, or memory.cache_teacher",
            _ => return Ok(()),
        };
        Err(Error::config(message).at("on_policy"))
    }
}

/// Returns the data; refuses a recipe without training data, or with a metric but no evaluation data.
fn data_of(data: Option<&RawData>, raw: &RawDistill) -> Result<RawData> {
    let data = data.cloned().unwrap_or_default();
    if data.train.is_none() {
        return Err(Error::config("data.train: missing; set the data to train on"));
    }
    if raw.metric.is_some() && data.eval.is_none() && data.select.is_none() {
        return Err(Error::config("metric: there is no data to measure it; set data.eval or data.select"));
    }
    Ok(data)
}

impl Student {
    fn from_raw(raw: &RawDistill) -> Result<Self> {
        let refuse_layers = |student: &str| {
            refuse("n_layers", &raw.n_layers, &format!("distill stage with student {student}"))?;
            refuse("layers", &raw.layers, &format!("distill stage with student {student}"))
        };
        match &raw.student {
            Some(RawStudent::Sizes(sizes)) => refuse_layers("of other sizes").map(|()| Self::Sizes(sizes.clone())),
            None => refuse_layers("self").map(|()| Self::Same),
            Some(RawStudent::Name(name)) => match one_of("student", name, &[("self", true), ("layers", false)])? {
                true => refuse_layers("self").map(|()| Self::Same),
                false if raw.n_layers.is_none() && !matches!(raw.layers, Some(RawLayers::List(_))) => Err(
                    Error::config("n_layers: missing; set the number of layers of the student, or list them in layers"),
                ),
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
            refuse("momentum", &raw.momentum, "distill stage with adamw")?;
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
