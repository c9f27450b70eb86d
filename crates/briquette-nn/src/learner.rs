//! Compression with burn's `Learner`.

use crate::Compression;
use briquette_core::Result;
use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams};
use burn::train::{InferenceStep, TrainOutput, TrainStep};

/// A model that burn's `Learner` trains while rules compress it.
///
/// Pass `Learner::new(Compressing::new(model, rules)?, ..)`; nothing else changes. After training,
/// `result.model.model.materialize()` is the compressed model.
///
/// # Panics
/// `TrainStep::optimize` panics if [`Compression::refresh`] fails, for example for a weight that is not finite:
/// `Learner` cannot return errors.
#[derive(Module, Debug)]
pub struct Compressing<M: Module> {
    /// The wrapped model.
    pub model: M,
    #[module(skip)]
    rules: Compression,
    step: usize,
}

impl<M: Module> Compressing<M> {
    /// Attaches the rules to a model.
    ///
    /// # Errors
    /// See [`Compression::attach`].
    pub fn new(model: M, rules: Compression) -> Result<Self> {
        Self::resumed(model, rules, 0)
    }

    /// Like [`new`](Self::new), with the schedules advanced to `step`: use it to load a checkpoint of that
    /// step.
    ///
    /// # Errors
    /// See [`Compression::attach`].
    pub fn resumed(model: M, rules: Compression, step: usize) -> Result<Self> {
        Ok(Self { model: rules.attach_at(model, step)?, rules, step })
    }

    /// Number of optimizer steps so far.
    pub fn step_count(&self) -> usize {
        self.step
    }

    /// Applies an optimizer step, then the rules.
    ///
    /// # Panics
    /// If a weight is not finite or the device fails: `Learner` cannot return errors.
    fn after(self, optimize: impl FnOnce(M) -> M) -> Self {
        let Self { model, rules, step } = self;
        let model = rules.refresh(optimize(model), step + 1).unwrap_or_else(|error| panic!("{error}"));
        Self { model, rules, step: step + 1 }
    }
}

impl<M: Module + TrainStep> TrainStep for Compressing<M> {
    type Input = M::Input;
    type Output = M::Output;

    fn step(&self, item: Self::Input) -> TrainOutput<Self::Output> {
        TrainStep::step(&self.model, item)
    }

    fn optimize(self, optim: &mut ModuleOptimizer, lr: ModuleLearningRate, grads: GradientsParams) -> Self {
        self.after(|model| model.optimize(optim, lr, grads))
    }

    fn optimize_multi(self, optim: &mut ModuleOptimizer, lr: ModuleLearningRate, grads: MultiGradientsParams) -> Self {
        self.after(|model| model.optimize_multi(optim, lr, grads))
    }
}

impl<M: Module + InferenceStep> InferenceStep for Compressing<M> {
    type Input = M::Input;
    type Output = M::Output;

    fn step(&self, item: Self::Input) -> Self::Output {
        InferenceStep::step(&self.model, item)
    }
}
