//! Preserves the codes and the sparsity of a compressed model for tensors that no stage changes.

use super::interop::Loads;
use briquette_core::encoded::{Codes, Storage};
use briquette_formats::{self as formats, OutputFormat, StoredDir, StoredTensor};
use briquette_methods::quant::{Activations, QuantSpec, ScaleSearch};
use briquette_writer::treatment::SharedTreatments;
use briquette_writer::{Plan, Quant, TensorPlan};

/// Plans to keep existing codes if the output format supports them, and sparse tensors sparse.
///
/// `loads` is set if transformers must load the output.
pub(super) fn keep_codings(plan: &mut Plan, stored: &StoredDir, loads: Option<&Loads>) {
    let mut shared = SharedTreatments::default();
    for tensor in &mut plan.tensors {
        let source = &stored.tensors[tensor.index()];
        // The zeros among codes do not tell whether a pruning made them: codes stay as small as they can be.
        let may_be_sparse = source.is_held_sparse() || source.coding.codes.is_some();
        tensor.was_sparse = plan.profile.holds_sparse() && may_be_sparse;
        keep_codes(plan.profile, tensor, source, loads);
        tensor.share(&mut shared);
    }
}

fn keep_codes(profile: OutputFormat, tensor: &mut TensorPlan, source: &StoredTensor, loads: Option<&Loads>) {
    let Some(codes) = source.coding.codes else { return };
    let refused = loads.and_then(|loads| loads.refuses(tensor));
    match refused.map_or_else(|| holds(profile, source, codes), Err) {
        Ok(()) => {
            tensor.output_rows = source.rows();
            tensor.quant = quant_of(source, codes, profile);
        }
        Err(why) => tensor.skipped = Some(format!("decoded: {why}")),
    }
}

/// Returns an error with the reason if the format does not support these codes.
fn holds(profile: OutputFormat, source: &StoredTensor, codes: Codes) -> Result<(), String> {
    let Some(held) = profile.held_codes() else { return Err("the format stores floats only".into()) };
    let has_others = match source.activations {
        Some(formats::ActivationRounding::Fixed) => !held.has_static,
        found => found == Some(formats::ActivationRounding::Other),
    };
    if has_others {
        return Err("the format does not support its quantization of activations".into());
    }
    held.misfit(codes, source.axis).map_or(Ok(()), |why| Err(why.to_string()))
}

fn quant_of(source: &StoredTensor, codes: Codes, profile: OutputFormat) -> Option<Quant> {
    let scale = profile.held_codes()?.scale(codes.scale);
    // The scales already exist, so this range is never used.
    let spec = QuantSpec {
        grid: codes.grid()?,
        grouping: codes.grouping,
        range: ScaleSearch::AbsMax,
        scale,
        has_columns: codes.has_columns,
        has_trellis: matches!(source.coding.storage, Storage::Entropy { has_trellis: true, .. }),
    };
    let activations = match source.activations {
        Some(formats::ActivationRounding::Symmetric | formats::ActivationRounding::SymmetricFull) => {
            Activations::DynamicSymmetric
        }
        Some(formats::ActivationRounding::Asymmetric) => Activations::DynamicAsymmetric,
        Some(formats::ActivationRounding::Fixed) => Activations::Static,
        None | Some(formats::ActivationRounding::Other) => Activations::Float,
    };
    Some(Quant { spec, activations, is_given: true, inputs: None })
}
