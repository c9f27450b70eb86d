//! Training settings.

use crate::Blend;
use crate::rate::Rate;
use briquette_core::{Error, Result};
use briquette_nn::Patterns;
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use std::fmt;

/// An optimizer.
#[derive(Clone)]
pub enum Optimizer {
    /// AdamW with betas 0.9 and 0.999. Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
    /// 2019.
    AdamW {
        /// Weight decay.
        decay: f32,
    },
    /// Gradient descent with momentum.
    Sgd {
        /// Momentum, 0 to below 1; 0 for none.
        momentum: f64,
        /// Weight decay.
        decay: f32,
    },
    /// Any optimizer of burn, optionally with parameter groups.
    ///
    /// Groups match the paths of the student without a prefix, and those of projections with the prefix
    /// `projections.`.
    Own(ModuleOptimizer),
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AdamW { decay } => write!(f, "AdamW {{ decay: {decay} }}"),
            Self::Sgd { momentum, decay } => write!(f, "Sgd {{ momentum: {momentum}, decay: {decay} }}"),
            Self::Own(_) => f.write_str("Own"),
        }
    }
}

impl Optimizer {
    pub(crate) fn init(&self) -> ModuleOptimizer {
        match *self {
            Self::Own(ref optimizer) => optimizer.clone(),
            Self::AdamW { decay } => AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(decay).init(),
            Self::Sgd { momentum, decay } => {
                let momentum =
                    (momentum > 0.0).then(|| MomentumConfig::new().with_momentum(momentum).with_dampening(0.0));
                let decay = (decay > 0.0).then(|| WeightDecayConfig::new(decay));
                SgdConfig::new().with_momentum(momentum).with_weight_decay(decay).init()
            }
        }
    }
}

/// Learning rates of one of burn's schedulers.
#[derive(Clone)]
pub struct OwnSchedule(ModuleLrScheduler);

impl fmt::Debug for OwnSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnSchedule")
    }
}

/// The metric that selects the best student.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal {
    /// The name of the metric in the evaluation.
    pub metric: String,
    /// Whether higher is better.
    pub is_more_better: bool,
}

/// Training settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The loss to minimize.
    pub blend: Blend,
    /// The number of passes over the data.
    pub epochs: usize,
    /// The number of items per step.
    pub batch_size: usize,
    /// The number of items in memory at once (micro-batch size). A step accumulates the gradients of several
    /// micro-batches.
    pub at_once: usize,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The maximum learning rate, reached after the warm-up. Then it decays to 0 along half a cosine.
    pub learning_rate: f64,
    /// The share of all steps in the warm-up, from 0 to below 1.
    pub warmup: f64,
    /// A scheduler that replaces `learning_rate` and `warmup`: see [`with_schedule`](Self::with_schedule).
    pub schedule: Option<OwnSchedule>,
    /// The decay of a mean teacher, from 0 to below 1. The student's average over time is its only teacher.
    ///
    /// After each step `θ' = α θ' + (1 - α) θ` with `α = min(decay, 1 - 1/(step + 1))`, where `θ` are the
    /// weights with masks and grids applied. Weights that were just pruned are therefore not yet zero in the
    /// average. Source: Tarvainen and Valpola, "Mean teachers are better role models", 2017.
    pub mean_teacher: Option<f64>,
    /// The global gradient norm at which gradients are clipped.
    pub clip: Option<f64>,
    /// The seed of the data order and of dropout.
    pub seed: u64,
    /// The metric that selects the best student; without one, the last student is used.
    pub goal: Option<Goal>,
    /// The step before which no student can be the best. Until then its sparsity is below the target.
    pub settled_at: usize,
    /// The number of epochs without improvement after which training stops.
    pub patience: Option<usize>,
    /// The number of steps between checkpoints. There is also one at the end of each epoch.
    pub save_every: usize,
    /// Parameters of the student that are not trained.
    pub frozen: Patterns,
    /// Whether to scale the loss against underflow of f16 gradients.
    pub scale_loss: bool,
    /// Whether to use gradient checkpointing by layer, for a [`Layered`](crate::Layered) network.
    ///
    /// Only states between layers are stored, and each layer runs again in the backward pass: less memory for
    /// about a third more time. No loss may compare attention.
    pub by_layer: bool,
    /// The share of batches that the student samples itself, from 0 to 1 (λ of GKD). The teacher's outputs for
    /// them are the targets, so no loss may need labels. See [`Traced::sampled`](crate::Traced::sampled).
    pub on_policy: f64,
    /// An additional loss on the bits of rounded weights; not on several devices.
    pub rate: Option<Rate>,
}

impl Settings {
    /// Creates settings with the default values.
    ///
    /// These are AdamW without decay, warm-up of a tenth of the steps, batches of 32, and clipping at 1.
    pub fn new(blend: Blend, epochs: usize, learning_rate: f64) -> Self {
        Self {
            blend,
            epochs,
            batch_size: 32,
            at_once: 32,
            optimizer: Optimizer::AdamW { decay: 0.0 },
            learning_rate,
            warmup: 0.1,
            schedule: None,
            mean_teacher: None,
            clip: Some(1.0),
            seed: 0,
            goal: None,
            settled_at: 0,
            patience: None,
            save_every: 200,
            frozen: Patterns::default(),
            scale_loss: false,
            by_layer: false,
            on_policy: 0.0,
            rate: None,
        }
    }

    /// Sets an optimizer of burn. If it clips gradients by itself, set [`clip`](Self::clip) to `None`.
    #[must_use]
    pub fn with_optimizer(self, optimizer: impl Into<ModuleOptimizer>) -> Self {
        Self { optimizer: Optimizer::Own(optimizer.into()), ..self }
    }

    /// Sets one of burn's schedulers, or a constant rate. `learning_rate` and `warmup` then have no effect.
    ///
    /// The scheduler takes one step per training step. A resumed training advances it to the current step.
    #[must_use]
    pub fn with_schedule(self, schedule: impl Into<ModuleLrScheduler>) -> Self {
        Self { schedule: Some(OwnSchedule(schedule.into())), ..self }
    }

    /// Checks that the settings are valid.
    ///
    /// # Errors
    /// Config: a value is out of range, or two keys contradict each other; the message has the key.
    pub fn check(&self) -> Result<()> {
        let at_least_one = [
            ("epochs", self.epochs),
            ("batch_size", self.batch_size),
            ("batch_size", self.at_once),
            ("save_every", self.save_every),
            ("patience", self.patience.unwrap_or(1)),
        ];
        if let Some((key, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(Error::config(format!("{key}: found 0, expected at least 1")));
        }
        let within = |key: &str, value: f64, is_fine: bool, range: &str| match is_fine {
            true => Ok(()),
            false => Err(Error::config(format!("{key}: found {value}, expected {range}"))),
        };
        let rate = self.learning_rate;
        within("learning_rate", rate, rate > 0.0 && rate <= 1.0, "above 0 and at most 1")?;
        within("warmup", self.warmup, (0.0..1.0).contains(&self.warmup), "a share of the steps, 0 to below 1")?;
        let clip = self.clip.unwrap_or(1.0);
        within("clip", clip, clip.is_finite() && clip > 0.0, "a length above 0")?;
        let (momentum, decay) = match &self.optimizer {
            Optimizer::AdamW { decay } => (0.0, f64::from(*decay)),
            Optimizer::Sgd { momentum, decay } => (*momentum, f64::from(*decay)),
            Optimizer::Own(optimizer) if optimizer.has_gradient_clipping() && self.clip.is_some() => {
                return Err(Error::config("clip: the optimizer clips gradients too; set clip to none"));
            }
            Optimizer::Own(_) => (0.0, 0.0),
        };
        within("momentum", momentum, (0.0..1.0).contains(&momentum), "0 to below 1")?;
        within("weight_decay", decay, (0.0..=1.0).contains(&decay), "0 to 1")?;
        let average = self.mean_teacher.unwrap_or(0.0);
        within("mean_teacher", average, (0.0..1.0).contains(&average), "a decay, 0 to below 1")?;
        within("on_policy", self.on_policy, (0.0..=1.0).contains(&self.on_policy), "a share of the batches, 0 to 1")?;
        if self.on_policy > 0.0 && self.blend.needs_labels() {
            return Err(Error::config("on_policy: sampled text has no labels; remove it, or the labels loss"));
        }
        if self.patience.is_some() && self.goal.is_none() {
            return Err(Error::config("patience: no metric is watched; set metric"));
        }
        let wanted = self.blend.wanted();
        if self.by_layer && (wanted.attention || wanted.values) {
            return Err(Error::config(
                "by_layer: a loss compares attention, which is not available by layer; remove one",
            ));
        }
        Ok(())
    }

    /// Returns the learning rate schedule: linear warm-up and cosine decay, unless a scheduler of burn is set.
    ///
    /// `η(t) = η t / w` for `t` up to `w`, then `η (1 + cos(π (t - w) / (n - w))) / 2`. Source: Loshchilov and
    /// Hutter, "SGDR", 2017, eq. 5.
    ///
    /// # Errors
    /// Config: burn refuses the learning rate.
    pub(crate) fn schedule(&self, n_steps: usize) -> Result<ModuleLrScheduler> {
        if let Some(OwnSchedule(schedule)) = &self.schedule {
            return Ok(schedule.clone());
        }
        let n_warm = (self.warmup * n_steps as f64).round() as usize;
        let cosine = CosineAnnealingLrSchedulerConfig::new(self.learning_rate, (n_steps - n_warm.min(n_steps)).max(1));
        let found = match n_warm {
            0 => cosine.init(),
            n_warm => {
                let linear =
                    LinearLrSchedulerConfig::new(self.learning_rate / (n_warm + 1) as f64, self.learning_rate, n_warm);
                let both = vec![LrSchedulerConfig::Linear(linear), LrSchedulerConfig::Cosine(cosine)];
                SequentialLrSchedulerConfig::new(both, vec![n_warm]).init()
            }
        };
        found.map_err(|message| Error::config(message).at("learning_rate"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loss, Term};

    fn settings() -> Settings {
        let blend = Blend::new(vec![Term { loss: Loss::Labels(0.0), weight: 1.0 }]).unwrap();
        Settings::new(blend, 2, 1e-3)
    }

    #[test]
    fn the_learning_rate_rises_then_falls_to_almost_zero() {
        let mut schedule = settings().schedule(100).unwrap();
        let rates: Vec<f64> = (0..100).map(|_| schedule.step().base()).collect();
        assert!(rates[0] > 0.0 && rates[..11].is_sorted() && rates[10] == 1e-3, "{:?}", &rates[..12]);
        assert!(rates[10..].iter().rev().is_sorted() && rates[99] < 1e-6);
        for warmup in [0.0, 0.99] {
            assert!(Settings { warmup, ..settings() }.schedule(1).is_ok());
        }
    }

    #[test]
    fn invalid_settings_are_refused_by_key() {
        let base = settings();
        let sgd = |momentum, decay| Optimizer::Sgd { momentum, decay };
        let cases = [
            (Settings { epochs: 0, ..base.clone() }, "epochs: found 0"),
            (Settings { learning_rate: f64::NAN, ..base.clone() }, "learning_rate: found NaN"),
            (Settings { warmup: 1.0, ..base.clone() }, "warmup: found 1"),
            (Settings { clip: Some(0.0), ..base.clone() }, "clip: found 0"),
            (Settings { patience: Some(2), ..base.clone() }, "patience: no metric is watched"),
            (Settings { optimizer: Optimizer::AdamW { decay: f32::NAN }, ..base.clone() }, "weight_decay: found NaN"),
            (Settings { on_policy: 1.5, ..base.clone() }, "on_policy: found 1.5"),
            (Settings { on_policy: 0.5, ..base.clone() }, "on_policy: sampled text has no labels"),
            (Settings { optimizer: sgd(1.0, 0.0), ..base.clone() }, "momentum: found 1"),
            (Settings { optimizer: sgd(f64::NAN, 0.0), ..base.clone() }, "momentum: found NaN"),
            (Settings { optimizer: sgd(0.9, -1.0), ..base.clone() }, "weight_decay: found -1"),
        ];
        for (settings, expected) in cases {
            assert!(settings.check().unwrap_err().to_string().contains(expected), "{expected}");
        }
        assert!(base.check().is_ok());
    }
}
