//! The manifest of an output: how each tensor is stored, and its hash.

use crate::layout::FileLayouts;
use crate::plan::Plan;
use briquette_core::{Hash128, Shape, Storage};
use briquette_formats::manifest::ManifestHead;
use briquette_formats::{Manifest, ManifestEntry, WeightLayout, manifest, names};
use serde_json::Value;
use std::io::{self, Write};

/// Writes the manifest of an output. Entries are created one by one, as there may be millions.
pub struct ManifestSource<'a> {
    plan: &'a Plan<'a>,
    layout: &'a FileLayouts,
    hashes: &'a [Hash128],
    head: ManifestHead,
    /// The tensors, sorted by name.
    order: Vec<u32>,
}

impl<'a> ManifestSource<'a> {
    /// Creates the manifest of an output that `producer` writes with `recipe`.
    ///
    /// `hashes` are those of [`Outcomes`](crate::encode::Outcomes).
    pub fn new(
        plan: &'a Plan,
        layout: &'a FileLayouts,
        hashes: &'a [Hash128],
        mut recipe: Value,
        producer: &str,
    ) -> Self {
        if plan.layout == WeightLayout::Burn {
            // Readers cannot recognize burn's layout from the files.
            recipe["model"]["layout"] = "burn".into();
        }
        let storages = plan.tensors.iter().zip(layout.tensors.iter());
        let storages =
            storages.map(|(tensor, placed)| (placed.coding, tensor.stored_axis(placed.coding), tensor.activations()));
        let head = ManifestHead {
            format: "briquette".into(),
            version: manifest::version_of(storages),
            producer: producer.into(),
            profile: plan.profile,
            recipe,
        };
        let order = names::order(plan.tensors.len(), |index| &plan.tensors[index].info.name);
        Self { plan, layout, hashes, head, order }
    }

    /// Writes the manifest as JSON.
    ///
    /// # Errors
    /// See [`ManifestHead::write`].
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.head.write(self.entries(), out)
    }

    /// Returns the indices of the tensors, sorted by name.
    pub(crate) fn into_order(self) -> Vec<u32> {
        self.order
    }

    /// Returns the whole manifest.
    pub fn to_manifest(&self) -> Manifest {
        let ManifestHead { format, version, producer, profile, recipe } = self.head.clone();
        Manifest { format, version, producer, profile, recipe, tensors: self.entries().collect() }
    }

    fn entries(&self) -> impl Iterator<Item = (String, ManifestEntry)> + Clone {
        self.order.iter().map(|&index| self.entry(index as usize))
    }

    fn entry(&self, index: usize) -> (String, ManifestEntry) {
        let (tensor, placed) = (&self.plan.tensors[index], self.layout.tensors.of(index));
        let activations = placed.coding.codes.and_then(|_| tensor.activations());
        let has_blocks = matches!(placed.coding.storage, Storage::Entropy { .. });
        let is_partial = has_blocks && placed.n_kept < tensor.rows().n_elements();
        let by_rows = self.hashes[index];
        let mut entry = ManifestEntry {
            dtype: tensor.stored_dtype(),
            shape: Shape::clone(&tensor.info.shape),
            output_axis: tensor.stored_axis(placed.coding),
            coding: placed.coding,
            n_kept: (placed.coding.storage == Storage::Bitmask || is_partial).then_some(placed.n_kept),
            activations: activations.map(str::to_string),
            file: self.layout.files[placed.file].name.clone(),
            hash: by_rows,
            tied_to: tensor.tied_to().map(|main| self.plan.tensors[main].info.name.to_string()),
        };
        entry.hash = self.head.hash_of(&entry, by_rows);
        (tensor.info.name.to_string(), entry)
    }
}
