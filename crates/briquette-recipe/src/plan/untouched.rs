//! The plan that changes nothing; stages are applied to it.

use crate::Recipe;
use crate::plan::in_place;
use crate::plan::interop::Loads;
use crate::plan::keep;
use crate::plan::role::RoleContext;
use crate::plan::topology::{Topology, layout_of};
use briquette_core::{Result, Rows};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use briquette_writer::known::Known;
use briquette_writer::plan::Nonfinite;
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, TensorPlan, Treatment};
use std::collections::BTreeMap;

/// Returns a plan that keeps every tensor of a checkpoint unchanged.
pub(crate) fn untouched<'a>(
    recipe: &Recipe,
    checkpoint: &'a Checkpoint,
    topology: &Topology,
    loads: Option<&Loads>,
) -> Result<Plan<'a>> {
    let layout = layout_of(recipe, checkpoint);
    let roles = RoleContext::of_model(checkpoint, topology, layout, &recipe.roles)?;
    let tensors = untouched_tensors(checkpoint.tensors(), |_, info| roles.of(info));
    let layout = layout.unwrap_or(WeightLayout::Torch);
    let Recipe { profile, max_shard_bytes, allow_nonfinite, .. } = *recipe;
    let metadata = checkpoint.metadata();
    let pools = Vec::new();
    let mut plan = Plan {
        piece_sizes: briquette_writer::piece::PieceSizes::LARGE,
        outlier_pools: Vec::new(),
        skeleton: in_place::skeleton(recipe, checkpoint)?,
        norms: BTreeMap::new(),
        tensors,
        pools,
        layout,
        metadata,
        profile,
        max_shard_bytes,
        nonfinite: if allow_nonfinite { Nonfinite::Left } else { Nonfinite::Refused },
        untested: None,
        remarks: Vec::new(),
        inputs: BTreeMap::new(),
    };
    if let Some(stored) = checkpoint.stored() {
        keep::keep_codings(&mut plan, stored, loads);
    }
    Ok(plan)
}

/// Returns plans that keep these tensors unchanged.
pub(crate) fn untouched_tensors<'a>(
    tensors: &'a [TensorInfo],
    known_of: impl Fn(usize, &TensorInfo) -> Known,
) -> Vec<TensorPlan<'a>> {
    let mut shared = SharedTreatments::default();
    let tensor = |(index, info): (usize, &'a TensorInfo)| {
        let known = known_of(index, info);
        let rows = match info.dtype.is_weight() {
            true => Rows::of(&info.shape, known.axis),
            false => Rows::of_bytes(info.n_bytes()),
        };
        let mut tensor = TensorPlan::new(index, info, Treatment::none(known, rows));
        tensor.share(&mut shared);
        tensor
    };
    tensors.iter().enumerate().map(tensor).collect()
}
