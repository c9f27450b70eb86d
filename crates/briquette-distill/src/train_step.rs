//! Distillation under burn's own training loop, on one device or several.

use crate::traced::{Batch, Teacher, Traced};
use crate::{Blend, Blended, Frozen, Targets};
use briquette_core::{Error, Result};
use burn::module::Module;
use burn::tensor::{Device, ExecutionError, Tensor};
use burn::train::metric::{Adaptor, ItemLazy, LossInput};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A student that burn's `SupervisedTraining` trains to follow a teacher, with any of its strategies: on each device there is a
/// copy of the teacher, made when the first batch gets there.
///
/// `Compressing::new(Distilling::new(..), rules)` holds masks and grids in place under paths that begin with `student.`. There
/// are no projections here: hidden states are of one width.
#[derive(Module, Debug)]
pub struct Distilling<N: Module> {
    /// The student.
    pub student: N,
    #[module(skip)]
    blend: Arc<Blend>,
    #[module(skip)]
    teachers: Copies,
}

/// A frozen network on every device that asked for it: a `Mutex<Vec<(Device, Frozen<N>)>>`. `#[derive(Module)]` takes no field
/// that names a module and is none, so its type is hidden.
#[derive(Clone)]
struct Copies(Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Copies")
    }
}

impl Copies {
    fn of<N: Traced + 'static>(network: Option<&N>) -> Self {
        let copies: Vec<(Device, Frozen<N>)> =
            network.map(Frozen::new).into_iter().map(|copy| (copy.device(), copy)).collect();
        Self(Arc::new(Mutex::new(copies)))
    }

    /// The copy on a device.
    fn on<N: Traced + 'static>(&self, device: &Device) -> Option<Frozen<N>> {
        let copies = self.0.downcast_ref::<Mutex<Vec<(Device, Frozen<N>)>>>()?;
        let mut copies = copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copy)) = copies.iter().find(|(known, _)| known == device) {
            return Some(copy.clone());
        }
        let copy = copies.first()?.1.to(device);
        copies.push((device.clone(), copy.clone()));
        Some(copy)
    }
}

/// What a step showed: its loss.
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

impl<N: Traced + 'static> Distilling<N> {
    /// A student on an autodiff device, a teacher of the same kind of network, and what goes down. `sample` is any batch, on the
    /// plain device.
    ///
    /// # Errors
    /// Config where student, teacher and blend do not go together.
    pub fn new(student: N, teacher: Option<&N>, blend: Blend, sample: &Batch<N::Input>) -> Result<Self> {
        let distilling = Self { student, blend: Arc::new(blend), teachers: Copies::of(teacher) };
        distilling.loss(&distilling.student.valid(), sample)?;
        Ok(distilling)
    }

    fn loss(&self, student: &N, batch: &Batch<N::Input>) -> Result<Blended> {
        let wanted = self.blend.wanted();
        let device = student.devices().into_iter().next().unwrap_or_default().without_autodiff();
        let teacher = self.teachers.on::<N>(&device).map(|teacher| teacher.outputs(batch, wanted)).transpose()?;
        if teacher.is_none() && self.blend.needs_teacher() {
            return Err(Error::config("there is no teacher, and a loss compares with one; name one"));
        }
        let targets = Targets { teacher: teacher.as_ref(), labels: batch.labels.as_ref(), projections: None };
        self.blend.loss(&student.outputs(&batch.input, wanted), targets)
    }

    /// # Panics
    /// If the loss cannot be had, which `new` has tried out: burn's loop has no way to hand an error on.
    fn output(&self, batch: &Batch<N::Input>) -> DistillOutput {
        let found = self.loss(&self.student, batch).unwrap_or_else(|error| panic!("{error}"));
        DistillOutput { loss: found.total }
    }
}

impl<N: Traced + 'static> TrainStep for Distilling<N>
where
    N::Input: Send + 'static,
{
    type Input = Batch<N::Input>;
    type Output = DistillOutput;

    fn step(&self, batch: Self::Input) -> TrainOutput<DistillOutput> {
        let output = self.output(&batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<N: Traced + 'static> InferenceStep for Distilling<N>
where
    N::Input: Send + 'static,
{
    type Input = Batch<N::Input>;
    type Output = DistillOutput;

    fn step(&self, batch: Self::Input) -> DistillOutput {
        self.output(&batch)
    }
}
