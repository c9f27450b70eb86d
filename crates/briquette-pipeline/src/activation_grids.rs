//! Fixed grids of activations for static int8, chosen from the activations of the original model over calibration data.

#[cfg(feature = "model")]
mod observe;

use crate::frequency::ScaledSource;
use briquette_core::{Error, Result};
use briquette_formats::output_format::CodeSupport;
use briquette_formats::{ActivationGrids, Checkpoint, OutputFormat};
use briquette_recipe::Recipe;
use briquette_writer::{Plan, RunOptions};

/// Chooses a grid for each activation that the plan's layers with static int8 need; `None` if there are no such layers.
///
/// Layers that the network does not use keep their float activations. Layers whose codes come from the model keep their grids. In a
/// network with attention, linear layers have grids, and so have queries, keys and values where a kernel multiplies their codes.
/// Inputs of convolutions get the range of each image there.
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
    if !plan.tensors.iter().any(|tensor| tensor.static_quant().is_some()) {
        return Ok(None);
    }
    let known = ActivationGrids::of(checkpoint)?;
    let (mut values, mut layers) = (known.values, known.layers);
    if plan.tensors.iter().any(|tensor| tensor.static_quant().is_some_and(|quant| !quant.is_given)) {
        let calibration = recipe.calibration.as_ref();
        let calibration =
            calibration.ok_or_else(|| Error::config("calibration.data: missing; int8-static runs the model on it"))?;
        let new = new_grids(calibration, plan, (checkpoint, scaled), options)?;
        values.extend(new.values);
        layers.extend(new.layers);
    }
    let grids = ActivationGrids::new(values, layers);
    store_beside_codes(plan, &grids)?;
    Ok(Some(grids))
}

/// Plans to store the grid of each layer's inputs beside its codes, if the format does.
fn store_beside_codes(plan: &mut Plan, grids: &ActivationGrids) -> Result<()> {
    if !has_grid_parts(plan.profile) {
        return Ok(());
    }
    for tensor in plan.tensors.iter_mut().filter(|tensor| tensor.static_quant().is_some()) {
        let grid = grids.layers.get(tensor.info.name.as_str());
        let grid = *grid.ok_or_else(|| no_grid_of_layer(plan.profile).at(tensor.culprit()))?;
        tensor.quant.iter_mut().for_each(|quant| quant.inputs = Some(grid));
    }
    Ok(())
}

fn has_grid_parts(profile: OutputFormat) -> bool {
    profile.held_codes().is_some_and(CodeSupport::has_grid_parts)
}

/// Returns the error for a network whose values have grids where the format needs one for each layer.
fn no_grid_of_layer(profile: OutputFormat) -> Error {
    Error::config(format!(
        "int8-static: {} stores grids of linear layers in networks with attention, and a convolutional network has grids of its values; \
         choose the format briquette",
        profile.name()
    ))
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
