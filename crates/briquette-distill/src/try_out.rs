//! What is looked at before the first step: whether student, teacher and data go together, and what does not learn.

use crate::traced::{DynTeacher, Traced, TrainingBatch};
use crate::trained::Trained;
use crate::{Blend, Loss, Outputs, Projections, Settings, Targets};
use briquette_core::{Error, Result};
use briquette_nn::parameters;
use burn::module::{Module, ParamGroup};
use burn::tensor::Device;

/// The device of a student that can learn.
///
/// # Errors
/// Config where it is a plain one.
pub(crate) fn check_learns<M: Module>(student: &M) -> Result<Device> {
    let device = student.devices().into_iter().next().unwrap_or_default();
    match device.is_autodiff() {
        true => Ok(device),
        false => Err(Error::config(
            "the student is on a plain device, where nothing learns; make it on `device.autodiff()`, or hand over `model.train()`",
        )),
    }
}

/// Runs student and teacher once, so that what does not go together shows before any work, and makes the projections.
pub(crate) fn try_out<N: Traced>(
    student: &N,
    teacher: Option<DynTeacher<N>>,
    blend: &Blend,
    sample: &TrainingBatch<N::Input>,
    device: &Device,
) -> Result<Projections> {
    if blend.needs_teacher() && teacher.is_none() {
        return Err(Error::config("there is no teacher, and a loss compares with one; name one"));
    }
    let wanted = blend.wanted();
    let found = student.valid().outputs(&sample.input, wanted);
    let of_teacher = teacher.map(|teacher| teacher.outputs(sample, wanted)).transpose()?;
    let hidden = blend.terms().iter().any(|term| matches!(term.loss, Loss::Hidden(..)));
    let widths = |teacher: &Outputs| Some([found.hidden.first()?.dims()[2], teacher.hidden.first()?.dims()[2]]);
    let widths = of_teacher.as_ref().filter(|_| hidden).and_then(widths).unwrap_or([0, 0]);
    let projections = Projections::new(found.hidden.len(), widths, device);
    let plain = projections.valid();
    let targets = Targets { teacher: of_teacher.as_ref(), labels: sample.labels.as_ref(), projections: Some(&plain) };
    blend.loss(&found, targets)?;
    Ok(projections)
}

/// Stops the gradients of what does not learn.
pub(crate) fn freeze<N: Traced>(model: Trained<N>, settings: &Settings) -> Result<Trained<N>> {
    if settings.frozen.is_empty() {
        return Ok(model);
    }
    let paths: Vec<String> = parameters(&model.student).into_iter().map(|parameter| parameter.path).collect();
    settings.frozen.check_used("parameter", paths.iter().map(String::as_str)).map_err(|error| error.at("freeze"))?;
    let frozen: Vec<String> = paths.into_iter().filter(|path| settings.frozen.matches(path)).collect();
    let student = model.student.set_require_grad_group(ParamGroup::from_paths(frozen), false);
    Ok(Trained { student, ..model })
}
