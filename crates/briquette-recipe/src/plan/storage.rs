//! Entropy-coded storage of codes.

use crate::Recipe;
use briquette_core::Coding;
use briquette_writer::treatment::{BlockBytes, SharedTreatments};
use briquette_writer::{Plan, TensorPlan};

/// Plans entropy coding for all codes, if the recipe has it.
pub(crate) fn choose(plan: &mut Plan, recipe: &Recipe) {
    if !recipe.codes_entropy {
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
