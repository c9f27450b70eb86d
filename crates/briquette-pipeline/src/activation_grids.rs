//! Fixed grids of activations for static int8, chosen from the activations of the original model over calibration data.

#[cfg(feature = "model")]
mod observe;

use crate::frequency::ScaledSource;
use briquette_core::{Error, Result};
use briquette_formats::{ActivationGrids, Checkpoint};
use briquette_methods::quant::Activations;
use briquette_recipe::Recipe;
use briquette_writer::{Plan, RunOptions, TensorPlan};

/// Chooses a grid for each activation that the plan's layers with static int8 need; `None` if there are no such layers.
///
/// Layers that the network does not use keep their float activations. Layers whose codes come from the model keep their grids. In a
/// network with attention, linear layers have grids, and inputs of convolutions get the range of each image.
///
/// # Errors
/// - Config: the network has neither attention nor convolutions, there is no data, or it is of another kind.
/// - Input: the data or the model is damaged.
/// - Refused: an activation is not finite, or is always zero.
/// - Io and Interrupted.
pub(crate) fn choose(
    recipe: &Recipe,
    plan: &mut Plan,
    (checkpoint, scaled): (&Checkpoint, &ScaledSource),
    options: &RunOptions,
) -> Result<Option<ActivationGrids>> {
    let is_static = |tensor: &&TensorPlan| tensor.quant.is_some_and(|quant| quant.activations == Activations::Static);
    if !plan.tensors.iter().any(|tensor| is_static(&tensor)) {
        return Ok(None);
    }
    let is_new = |tensor: &TensorPlan| tensor.quant.is_some_and(|quant| !quant.is_given);
    let mut grids = ActivationGrids::of(checkpoint)?;
    if plan.tensors.iter().any(|tensor| is_static(&tensor) && is_new(tensor)) {
        let calibration = recipe.calibration.as_ref();
        let calibration =
            calibration.ok_or_else(|| Error::config("calibration.data: missing; int8-static runs the model on it"))?;
        let new = new_grids(calibration, plan, (checkpoint, scaled), options)?;
        grids.values.extend(new.values);
        grids.layers.extend(new.layers);
    }
    Ok(Some(grids))
}

#[cfg(feature = "model")]
pub(crate) use observe::grids_of;
#[cfg(feature = "model")]
use observe::new_grids;

/// Returns an error: this build cannot run models.
#[cfg(not(feature = "model"))]
fn new_grids(
    _: &briquette_recipe::CalibrationRun,
    _: &mut Plan,
    _: (&Checkpoint, &ScaledSource),
    _: &RunOptions,
) -> Result<ActivationGrids> {
    Err(Error::lacks_feature("model", "run models").at("calibration.data"))
}
