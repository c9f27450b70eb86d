//! What an output has beside its weights: the manifest, the index of shards, and the files that come along.

use crate::context::Workers;
use crate::encode::Outcome;
use crate::layout::Layout;
use crate::plan::interop::Loads;
use crate::plan::{Plan, TensorPlan};
use crate::recipe::Recipe;
use crate::recipe::raw::RawLayout;
use crate::role::Role;
use briquette_core::{DType, Result, Storage};
use briquette_formats::{
    Checkpoint, Draft, Entry, Manifest, Profile, companions, index, manifest, model_config, quantization_config,
};
use std::collections::BTreeMap;
use std::path::Path;

/// The manifest: how each tensor is kept, and its hash.
pub(super) fn manifest_of(recipe: &Recipe, plan: &Plan, layout: &Layout, outcomes: &[Outcome]) -> Result<Manifest> {
    let mut tensors = BTreeMap::new();
    for (tensor, (placed, outcome)) in plan.tensors.iter().zip(layout.tensors.iter().zip(outcomes)) {
        let activations = placed.coding.codes.and_then(|_| tensor.activations());
        let entry = Entry {
            dtype: tensor.stored_dtype(),
            shape: tensor.info.shape.clone(),
            output_axis: tensor.stored_axis(placed.coding),
            coding: placed.coding,
            n_kept: (placed.coding.storage == Storage::Bitmask).then_some(placed.n_kept),
            activations: activations.map(str::to_string),
            file: layout.files[placed.file].name.clone(),
            hash: outcome.hash,
            tied_to: tensor.tied_to.map(|main| plan.tensors[main].info.name.clone()),
        };
        tensors.insert(tensor.info.name.clone(), entry);
    }
    let mut recipe = recipe.to_manifest()?;
    if plan.layout == RawLayout::Burn {
        // Files do not show which way Linear weights lie, so the manifest has to say it.
        recipe["model"]["layout"] = "burn".into();
    }
    Ok(Manifest {
        format: "briquette".into(),
        version: manifest::version_of(&tensors),
        producer: concat!("briquette ", env!("CARGO_PKG_VERSION")).into(),
        profile: plan.profile,
        recipe,
        tensors,
    })
}

/// The manifest, the index of shards, and the files that come along.
pub(super) fn write(
    draft: &Draft,
    plan: &Plan,
    layout: &Layout,
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    workers: &Workers,
) -> Result<()> {
    draft.write_file(Path::new(manifest::FILE_NAME), &manifest.to_json()?)?;
    companions::copy_into(draft, checkpoint, &|| workers.check_stop())?;
    if let Some(config) = config_of(plan, checkpoint, manifest)? {
        draft.write_file(Path::new(model_config::FILE_NAME), &config)?;
    }
    let needs_index = matches!(plan.profile, Profile::Dense | Profile::CompressedTensors) && layout.files.len() > 1;
    if needs_index {
        let entries =
            layout.files.iter().flat_map(|file| file.names.iter().map(|name| (name.clone(), file.name.clone())));
        let total = layout.files.iter().map(|file| file.n_bytes - file.header.len() as u64).sum();
        draft.write_file(Path::new("model.safetensors.index.json"), &index::to_json(&entries.collect(), total))?;
    }
    Ok(())
}

/// The one type of all weights that are no codes, where a stage cast them.
fn dtype_of(plan: &Plan) -> Option<DType> {
    let floats = plan.tensors.iter().filter(|tensor| tensor.info.dtype.is_weight() && tensor.quant.is_none());
    let mut dtypes: Vec<DType> = floats.clone().map(|tensor| tensor.stored_dtype()).collect();
    dtypes.dedup();
    let is_cast = floats.clone().any(|tensor| tensor.cast.is_some());
    dtypes.first().copied().filter(|_| is_cast && dtypes.len() == 1)
}

/// Whether other programs may have a Linear layer for a tensor: routers are such in some versions, and what nothing is known of.
fn may_be_linear(tensor: &TensorPlan) -> bool {
    tensor.info.shape.rank() == 2 && matches!(tensor.role, Role::Linear | Role::Parameter | Role::Unknown)
}

/// The model's `config.json`, telling other programs about the codes of this output and not of an earlier one.
fn config_of(plan: &Plan, checkpoint: &Checkpoint, manifest: &Manifest) -> Result<Option<Vec<u8>>> {
    let mut original = model_config::read(checkpoint)?;
    if let Some(dtype) = dtype_of(plan) {
        original = model_config::with_dtype(original, dtype)?;
    }
    let quantization = match plan.profile {
        Profile::CompressedTensors => {
            let linear = plan.tensors.iter().filter(|tensor| may_be_linear(tensor));
            let linear: Vec<&str> = linear.map(|tensor| tensor.info.name.as_str()).collect();
            let loads = Loads::of(checkpoint)?;
            quantization_config::of(manifest, &linear, loads.family(), original.as_deref())
        }
        _ => None,
    };
    model_config::with_quantization(original, quantization.as_ref(), &checkpoint.directory())
}
