//! Distillation in burn's own training loop, on one device or several.

use crate::grads;
use crate::traced::{Traced, TrainingBatch};
use crate::try_out::check_learns;
use crate::{Blend, Blended, SharedTeacher, Targets};
use briquette_core::{Error, Result};
use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, ExecutionError, Tensor};
use burn::train::metric::{Adaptor, ItemLazy, LossInput};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A student that burn's `SupervisedTraining` trains to follow a teacher of any type, with any strategy.
///
/// Each device has a copy of the teacher, created when the first batch arrives there.
/// `Compressing::new(Distilling::new(..), rules)` keeps masks and grids in place, under paths that begin with
/// `student.`. Projections are not supported: hidden widths must be equal.
#[derive(Module, Debug)]
pub struct Distilling<N: Module> {
    /// The student.
    pub student: N,
    #[module(skip)]
    blend: Arc<Blend>,
    #[module(skip)]
    teacher: Followed,
    #[module(skip)]
    steps: StepHook,
}

/// The teacher: a `SharedTeacher` of the student's inputs.
///
/// Its type is hidden, because `#[derive(Module)]` rejects a field whose type mentions a module without being
/// one.
#[derive(Clone)]
struct Followed(Option<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Followed")
    }
}

impl Followed {
    fn of<I: 'static>(teacher: Option<SharedTeacher<I>>) -> Self {
        Self(teacher.map(|teacher| Arc::new(teacher) as Arc<dyn Any + Send + Sync>))
    }

    fn teacher<I: 'static>(&self) -> Option<&SharedTeacher<I>> {
        self.0.as_ref()?.downcast_ref()
    }
}

/// The work of [`Several`](crate::Several) in each of burn's steps; none in a user's own training.
#[derive(Clone, Default)]
pub(crate) struct StepHook(Option<Arc<StepHookInner>>);

/// The settings of a [`StepHook`], and its callback.
pub(crate) struct StepHookInner {
    /// The factor of each loss, so that the gradients, which burn sums over devices and micro-batches, have the
    /// scale of a mean.
    pub(crate) share: f64,
    /// The norm at which gradients are clipped.
    pub(crate) clip: Option<f64>,
    /// The device whose steps are reported; several devices may make each step.
    pub(crate) main: Device,
    /// The losses of all devices' micro-batches since the last optimizer step.
    pub(crate) losses: Mutex<Vec<f64>>,
    /// A callback for each step, with its loss, learning rate and gradient norm.
    pub(crate) on_step: Box<dyn Fn(f64, f64, f64) + Send + Sync>,
}

impl StepHook {
    pub(crate) fn new(steps: StepHookInner) -> Self {
        Self(Some(Arc::new(steps)))
    }
}

impl fmt::Debug for StepHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepHook")
    }
}

impl StepHookInner {
    fn losses(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns clipped gradients.
    ///
    /// # Panics
    /// If a gradient is not finite, or the device fails: burn's loop cannot return an error.
    fn tamed<M: Module>(&self, grads: GradientsParams, module: &M, device: &Device, rate: f64) -> GradientsParams {
        let norm = grads::norm(&grads, module).unwrap_or_else(|error| panic!("{error}"));
        assert!(norm.is_finite(), "the gradient is {norm}; lower the learning rate");
        if *device == self.main {
            let losses = std::mem::take(&mut *self.losses());
            (self.on_step)(losses.iter().sum::<f64>() / losses.len().max(1) as f64, rate, norm);
        }
        match self.clip {
            Some(most) if norm > most => grads::scaled(grads, module, most / norm),
            _ => grads,
        }
    }
}

/// The output of a step: its loss.
#[derive(Debug, Clone)]
pub struct DistillOutput {
    /// The blended loss, `[1]`.
    pub loss: Tensor<1>,
}

impl ItemLazy for DistillOutput {
    fn sync(self) -> Result<Self, ExecutionError> {
        self.loss.device().flush()?;
        Ok(Self { loss: self.loss.without_autodiff() })
    }
}

impl Adaptor<LossInput> for DistillOutput {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.loss.clone())
    }
}

impl<N: Traced + 'static> Distilling<N>
where
    N::Input: 'static,
{
    /// Creates a model from a student on an autodiff device, its teacher and its loss.
    ///
    /// The teacher is `None` with labels only.
    ///
    /// `sample` is any batch on the plain device.
    ///
    /// # Errors
    /// Config: the student is on a plain device, or student, teacher and blend do not match.
    pub fn new(
        student: N,
        teacher: Option<SharedTeacher<N::Input>>,
        blend: Blend,
        sample: &TrainingBatch<N::Input>,
    ) -> Result<Self> {
        check_learns(&student)?;
        let (teacher, steps) = (Followed::of(teacher), StepHook::default());
        let distilling = Self { student, blend: Arc::new(blend), teacher, steps };
        distilling.loss(&distilling.student.valid(), sample)?;
        Ok(distilling)
    }

    /// Adds a hook to each of burn's steps.
    pub(crate) fn with_steps(self, steps: StepHook) -> Self {
        Self { steps, ..self }
    }

    fn loss(&self, student: &N, batch: &TrainingBatch<N::Input>) -> Result<Blended> {
        let wanted = self.blend.wanted();
        let device = student.devices().into_iter().next().unwrap_or_default();
        let teacher = self.teacher.teacher::<N::Input>();
        let teacher = teacher.map(|teacher| teacher.outputs_on(&device, batch, wanted)).transpose()?;
        if teacher.is_none() && self.blend.needs_teacher() {
            return Err(Error::config("there is no teacher, but a loss needs one; set a teacher"));
        }
        let targets = Targets { teacher: teacher.as_ref(), labels: batch.labels.as_ref(), projections: None };
        self.blend.loss(&student.outputs(&batch.input, wanted), targets)
    }

    /// Computes the loss of a batch.
    ///
    /// # Panics
    /// If the loss cannot be computed, which `new` has checked: burn's loop cannot return an error.
    fn output(&self, batch: &TrainingBatch<N::Input>) -> DistillOutput {
        let found = self.loss(&self.student, batch).unwrap_or_else(|error| panic!("{error}"));
        DistillOutput { loss: found.total }
    }
}

impl<N: Traced + 'static> TrainStep for Distilling<N>
where
    N::Input: Send + 'static,
{
    type Input = TrainingBatch<N::Input>;
    type Output = DistillOutput;

    fn step(&self, batch: Self::Input) -> TrainOutput<DistillOutput> {
        let output = self.output(&batch);
        let Some(steps) = &self.steps.0 else { return TrainOutput::new(self, output.loss.backward(), output) };
        let value = grads::read(output.loss.clone()).unwrap_or_else(|error| panic!("{error}"));
        let value = f64::from(value.first().copied().unwrap_or(0.0));
        assert!(value.is_finite(), "the loss is {value}; lower the learning rate, or check the data");
        steps.losses().push(value);
        TrainOutput::new(self, (output.loss.clone() * steps.share).backward(), output)
    }

    fn optimize(self, optimizer: &mut ModuleOptimizer, rate: ModuleLearningRate, grads: GradientsParams) -> Self {
        let grads = match &self.steps.0 {
            Some(steps) => {
                let device = self.student.devices().into_iter().next().unwrap_or_default();
                steps.tamed(grads, &self, &device, rate.base())
            }
            None => grads,
        };
        optimizer.step(rate, self, grads)
    }
}

impl<N: Traced + 'static> InferenceStep for Distilling<N>
where
    N::Input: Send + 'static,
{
    type Input = TrainingBatch<N::Input>;
    type Output = DistillOutput;

    fn step(&self, batch: Self::Input) -> DistillOutput {
        self.output(&batch)
    }
}
