//! Checks before the first step: whether student, teacher and data match, and which parameters are frozen.

use crate::traced::{DynTeacher, Traced, TrainingBatch};
use crate::trained::Trained;
use crate::{Blend, Loss, Outputs, Projections, Settings, Targets};
use briquette_core::{Error, Result};
use briquette_nn::parameters;
use burn::module::{Module, ParamGroup};
use burn::tensor::Device;

/// Returns the device of a trainable student.
///
/// # Errors
/// Config: the student is on a plain device.
pub(crate) fn check_learns<M: Module>(student: &M) -> Result<Device> {
    let device = student.devices().into_iter().next().unwrap_or_default();
    match device.is_autodiff() {
        true => Ok(device),
        false => Err(Error::config(
            "the student is on a plain device without gradients; create it on `device.autodiff()`, or pass `model.train()`",
        )),
    }
}

/// Runs student and teacher once to find mismatches before any work, and creates the projections.
pub(crate) fn try_out<N: Traced>(
    student: &N,
    teacher: Option<DynTeacher<N>>,
    blend: &Blend,
    sample: &TrainingBatch<N::Input>,
    device: &Device,
) -> Result<Projections> {
    if blend.needs_teacher() && teacher.is_none() {
        return Err(Error::config("there is no teacher, but a loss needs one; set a teacher"));
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

/// Stops the gradients of frozen parameters.
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
