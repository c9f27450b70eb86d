//! The manifest of an output: how each tensor is kept, and its hash.

use crate::encode::Outcome;
use crate::layout::FileLayouts;
use crate::plan::Plan;
use briquette_core::Storage;
use briquette_formats::{Manifest, ManifestEntry, WeightLayout, manifest, names};
use serde_json::Value;
use std::collections::BTreeMap;

/// The manifest of an output that `producer` makes by `recipe`.
pub fn manifest_of(plan: &Plan, layout: &FileLayouts, outcomes: &[Outcome], recipe: Value, producer: &str) -> Manifest {
    let entry = |index: u32| {
        let index = index as usize;
        let (tensor, placed, outcome) = (&plan.tensors[index], &layout.tensors[index], &outcomes[index]);
        let activations = placed.coding.codes.and_then(|_| tensor.activations());
        let has_blocks = matches!(placed.coding.storage, Storage::Entropy { .. });
        let entry = ManifestEntry {
            dtype: tensor.stored_dtype(),
            shape: tensor.info.shape.clone(),
            output_axis: tensor.stored_axis(placed.coding),
            coding: placed.coding,
            n_kept: (placed.coding.storage == Storage::Bitmask
                || has_blocks && placed.n_kept < tensor.rows().n_elements())
            .then_some(placed.n_kept),
            activations: activations.map(str::to_string),
            file: layout.files[placed.file].name.clone(),
            hash: outcome.hash,
            tied_to: tensor.tied_to().map(|main| plan.tensors[main].info.name.clone()),
        };
        (tensor.info.name.clone(), entry)
    };
    // A map of entries that come in order is made in one go.
    let order = names::order(plan.tensors.len(), |index| &plan.tensors[index].info.name);
    let mut tensors: BTreeMap<String, ManifestEntry> = order.into_iter().map(entry).collect();
    let mut recipe = recipe;
    if plan.layout == WeightLayout::Burn {
        // The next reader cannot tell burn's layout from the files.
        recipe["model"]["layout"] = "burn".into();
    }
    let mut manifest = Manifest {
        format: "briquette".into(),
        version: manifest::version_of(&tensors),
        producer: producer.into(),
        profile: plan.profile,
        recipe,
        tensors: BTreeMap::new(),
    };
    tensors.values_mut().for_each(|entry| entry.hash = manifest.hash_of(entry, entry.hash));
    manifest.tensors = tensors;
    manifest
}
