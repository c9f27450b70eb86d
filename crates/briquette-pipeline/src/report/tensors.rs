//! The result of each tensor: storage, reason, bytes and error.

use super::evidence::Evidence;
use super::figures::{ErrorReport, TensorReport, TensorTraits};
use briquette_core::{Coding, Storage};
use briquette_writer::TensorPlan;
use std::sync::Arc;

/// Returns the result of each tensor, in the order of the model.
pub(super) fn of<'a>(evidence: &'a Evidence<'a>) -> Vec<TensorReport> {
    let mut known = KnownTraits::default();
    let one = |tensor: &'a TensorPlan<'a>| {
        let placed = evidence.layout.tensors.of(tensor.index());
        let n = tensor.info.n_elements().max(1) as f64;
        let (rows, dtype) = (tensor.rows(), tensor.value_dtype());
        let n_bytes = placed.coding.n_bytes(dtype, rows.n_rows, rows.n_cols, placed.n_kept) as u64;
        let after_bytes = if tensor.tied_to().is_some() { 0 } else { n_bytes };
        let error = tensor.is_changed().then(|| ErrorReport::from(evidence.stats[tensor.index()].figures()));
        let outputs = evidence.outputs.get(&tensor.index()).filter(|outputs| outputs.whole > 0.0);
        TensorReport {
            name: tensor.info.name.clone(),
            traits: known.of(evidence, tensor, placed.coding),
            after_bytes,
            bits_per_weight: after_bytes as f64 * 8.0 / n,
            sparsity: evidence.n_zeros[tensor.index()] as f64 / n,
            error,
            output_error: outputs.map(|outputs| Box::new(outputs.error / outputs.whole)),
            solved: evidence.solved.get(&tensor.index()).cloned().map(Box::new),
        }
    };
    evidence.plan.tensors.iter().map(one).collect()
}

/// The most shared properties that are searched for an equal one.
const MAX_KNOWN: usize = 32;

/// Recently used properties, with a tensor that has them and its coding.
#[derive(Default)]
struct KnownTraits<'a>(Vec<(&'a TensorPlan<'a>, Coding, Arc<TensorTraits>)>);

impl<'a> KnownTraits<'a> {
    /// Returns the shared properties of a tensor.
    fn of(&mut self, evidence: &Evidence, tensor: &'a TensorPlan<'a>, coding: Coding) -> Arc<TensorTraits> {
        let is_alike = |(other, of, _): &(&TensorPlan, Coding, _)| {
            Arc::ptr_eq(other.treatment(), tensor.treatment())
                && (other.info.dtype, &other.info.shape, *of) == (tensor.info.dtype, &tensor.info.shape, coding)
                && other.tied_to() == tensor.tied_to()
        };
        match self.0.iter().position(is_alike) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                self.0.truncate(MAX_KNOWN - 1);
                self.0.insert(0, (tensor, coding, Arc::new(traits_of(evidence, tensor))));
            }
        }
        self.0[0].2.clone()
    }
}

fn traits_of(evidence: &Evidence, tensor: &TensorPlan) -> TensorTraits {
    TensorTraits {
        role: tensor.role,
        dtype: tensor.info.dtype.to_string(),
        shape: tensor.info.shape.0.clone(),
        encoding: encoding_of(evidence, tensor),
        why: why_of(evidence, tensor),
        before_bytes: tensor.info.n_bytes() as u64,
        is_new: false,
    }
}

/// Returns the storage of a tensor as text: `int8 per channel, bitmask`.
fn encoding_of(evidence: &Evidence, tensor: &TensorPlan) -> String {
    if let Some(main) = tensor.tied_to() {
        return format!("tied to {}", evidence.plan.tensors[main].info.name);
    }
    let coding = evidence.layout.tensors.of(tensor.index()).coding;
    let values = match coding.codes {
        Some(codes) => {
            let sign = if codes.grid == briquette_core::GridKind::Asymmetric { " asymmetric" } else { "" };
            format!("int{}{sign} {}", codes.bits, codes.grouping)
        }
        None => tensor.stored_dtype().to_string().to_lowercase(),
    };
    match coding.storage {
        Storage::Dense => values,
        Storage::Bitmask => format!("{values}, bitmask"),
        Storage::Entropy { has_trellis: false, .. } => format!("{values}, entropy-coded"),
        Storage::Entropy { has_trellis: true, .. } => format!("{values} on a trellis, entropy-coded"),
    }
}

/// Returns the reason of the storage, if there was a choice or the tensor was skipped.
fn why_of(evidence: &Evidence, tensor: &TensorPlan) -> String {
    if let Some(skipped) = &tensor.skipped {
        return skipped.clone();
    }
    let placed = evidence.layout.tensors.of(tensor.index());
    if tensor.prune.is_none() || !evidence.plan.profile.holds_sparse() {
        return String::new();
    }
    match placed.coding.storage {
        Storage::Bitmask => "bitmask is smaller than dense".into(),
        Storage::Entropy { .. } => "zeros are stored in few bits".into(),
        Storage::Dense => "a bitmask of the kept weights saves nothing".into(),
    }
}
