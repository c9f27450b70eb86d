//! Entropy-coded storage of codes.

use crate::Recipe;
use briquette_core::{Coding, Storage};
use briquette_formats::{Checkpoint, OutputFormat};
use briquette_writer::treatment::{BlockBytes, SharedTreatments};
use briquette_writer::{Plan, TensorPlan};

/// Returns whether a training of scales writes entropy-coded codes: the recipe has it, or the codes of its model are, and the format
/// supports it.
pub fn keeps_blocks(recipe: &Recipe, checkpoint: &Checkpoint) -> bool {
    let mut tensors = checkpoint.stored().into_iter().flat_map(|stored| &stored.tensors);
    let has_blocks = tensors.any(|tensor| matches!(tensor.coding.storage, Storage::Entropy { .. }));
    recipe.codes_entropy || has_blocks && recipe.profile == OutputFormat::Briquette
}

/// Plans entropy coding for all codes, if the output has it.
pub(crate) fn choose(plan: &mut Plan, is_entropy: bool) {
    if !is_entropy {
        return;
    }
    let (profile, mut shared) = (plan.profile, SharedTreatments::default());
    let fits = |tensor: &TensorPlan| {
        tensor
            .codes(profile)
            .is_some_and(|codes| Coding::entropy(codes, false, tensor.rows().n_rows, tensor.rows().n_cols).is_some())
    };
    for tensor in plan.tensors.iter_mut().filter(|tensor| fits(tensor)) {
        tensor.blocks = Some(BlockBytes::AtMost);
        tensor.share(&mut shared);
    }
    if plan.tensors.iter().all(|tensor| tensor.blocks.is_none()) {
        plan.remarks.push("No tensor has codes, so nothing is entropy-coded.".into());
    }
}
