//! The result of each tensor: storage, reason, bytes and error.

use super::evidence::Evidence;
use super::figures::{ErrorReport, TensorReport};
use briquette_core::Storage;
use briquette_writer::TensorPlan;

/// Returns the result of each tensor, in the order of the model.
pub(super) fn of(evidence: &Evidence) -> Vec<TensorReport> {
    let planned = &evidence.plan.tensors;
    let one = |tensor: &TensorPlan| {
        let placed = evidence.layout.tensors.of(tensor.index());
        let n = tensor.info.n_elements().max(1) as f64;
        let (rows, dtype) = (tensor.rows(), tensor.value_dtype());
        let n_bytes = placed.coding.n_bytes(dtype, rows.n_rows, rows.n_cols, placed.n_kept) as u64;
        let after_bytes = if tensor.tied_to().is_some() { 0 } else { n_bytes };
        let error = tensor.is_changed().then(|| ErrorReport::from(evidence.stats[tensor.index()].figures()));
        let outputs = evidence.outputs.get(&tensor.index()).filter(|outputs| outputs.whole > 0.0);
        TensorReport {
            name: tensor.info.name.to_string(),
            role: tensor.role,
            dtype: tensor.info.dtype.to_string(),
            shape: tensor.info.shape.0.clone(),
            encoding: encoding_of(evidence, tensor),
            why: why_of(evidence, tensor),
            before_bytes: tensor.info.n_bytes() as u64,
            is_new: false,
            after_bytes,
            bits_per_weight: after_bytes as f64 * 8.0 / n,
            sparsity: evidence.n_zeros[tensor.index()] as f64 / n,
            error,
            output_error: outputs.map(|outputs| outputs.error / outputs.whole),
            solved: evidence.solved.get(&tensor.index()).cloned().map(Box::new),
        }
    };
    planned.iter().map(one).collect()
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
        Storage::Entropy { .. } => format!("{values}, entropy-coded"),
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
        Storage::Dense => "too few zeros for a bitmask to save anything".into(),
    }
}
