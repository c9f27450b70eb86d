//! The files beside the weights: companion files of the model, and its config with the quantization.

use crate::onnx_network;
use briquette_core::{DType, Result, Role, Shape};
use briquette_formats::{
    ActivationGrids, Checkpoint, Draft, OutputFormat, TensorInfo, TensorSource, activation_grids, companions,
    model_config, quantization_config,
};
use briquette_recipe::plan::interop::Loads;
use briquette_writer::manifest::ManifestSource;
use briquette_writer::{Plan, TensorPlan, Workers};
use std::collections::BTreeMap;
use std::path::Path;

/// Writes the model's companion files, its config, and the grids of activations.
pub(super) fn write(
    draft: &Draft,
    plan: &Plan,
    checkpoint: &Checkpoint,
    (manifest, grids): (&ManifestSource, Option<&ActivationGrids>),
    workers: &Workers,
) -> Result<()> {
    companions::copy_into(draft, checkpoint, &|| workers.check_stop())?;
    if let Some(grids) = grids {
        draft.write_file(Path::new(activation_grids::FILE_NAME), &grids.to_bytes())?;
    }
    let beside = match network_of(plan, checkpoint)? {
        Some(network) => onnx_network::files(checkpoint, network)?,
        None if plan.profile.is_in_place() => onnx_network::settings(checkpoint)?,
        None => Vec::new(),
    };
    beside.iter().try_for_each(|(name, bytes)| draft.write_file(name, bytes))?;
    match config_of(plan, checkpoint, manifest)? {
        Some(config) => draft.write_file(Path::new(model_config::FILE_NAME), &config),
        None => Ok(()),
    }
}

/// Returns the network of an ONNX model, for an output in our own format with the weights of that network.
fn network_of(plan: &Plan, checkpoint: &Checkpoint) -> Result<Option<Vec<u8>>> {
    let is_ours = plan.profile == OutputFormat::default();
    if !is_ours || checkpoint.network_file().is_none() {
        return Ok(None);
    }
    let written: BTreeMap<&str, &Shape> =
        plan.tensors.iter().map(|tensor| (&*tensor.info.name, &*tensor.info.shape)).collect();
    let is_written = |info: &TensorInfo| written.get(&*info.name) == Some(&&*info.shape);
    if !checkpoint.tensors().iter().all(is_written) {
        return Ok(None);
    }
    onnx_network::of(checkpoint)
}

/// Returns the type of all float weights, if a stage cast them to a single type.
fn dtype_of(plan: &Plan) -> Option<DType> {
    let floats = plan.tensors.iter().filter(|tensor| tensor.info.dtype.is_weight() && tensor.quant.is_none());
    let mut dtypes: Vec<DType> = floats.clone().map(|tensor| tensor.stored_dtype()).collect();
    dtypes.dedup();
    let is_cast = floats.clone().any(|tensor| tensor.cast.is_some());
    dtypes.first().copied().filter(|_| is_cast && dtypes.len() == 1)
}

/// Returns whether other programs may have a Linear layer for a tensor: routers in some versions, and unknown
/// tensors.
fn may_be_linear(tensor: &TensorPlan) -> bool {
    tensor.info.shape.rank() == 2 && matches!(tensor.role, Role::Linear | Role::Parameter | Role::Unknown)
}

/// Returns the model's `config.json` with the quantization of this output instead of an earlier one.
fn config_of(plan: &Plan, checkpoint: &Checkpoint, manifest: &ManifestSource) -> Result<Option<Vec<u8>>> {
    let mut original = model_config::read(checkpoint)?;
    if let Some(dtype) = dtype_of(plan) {
        original = model_config::with_dtype(original, dtype)?;
    }
    let quantization = match plan.profile.is_for_transformers() {
        true => {
            let linear = plan.tensors.iter().filter(|tensor| may_be_linear(tensor));
            let linear: Vec<&str> = linear.map(|tensor| tensor.info.name.as_str()).collect();
            let loads = Loads::of(checkpoint)?;
            quantization_config::of(&manifest.to_manifest(), &linear, loads.family())
        }
        false => None,
    };
    model_config::with_quantization(original, quantization.as_ref(), &checkpoint.directory())
}
