//! What a compressed model keeps of its codes and its sparsity when nothing else is done to it.

use super::interop::Loads;
use briquette_core::encoded::{Codes, ScaleType};
use briquette_core::{GridKind, OutputAxis, Storage};
use briquette_flow::treatment::SharedTreatments;
use briquette_flow::{Plan, Quant, TensorPlan};
use briquette_formats::{self as formats, OutputFormat, StoredDir, StoredTensor};
use briquette_quant::{Activations, QuantSpec, Range};

/// Plans to keep codes as they are wherever the output's format can hold them, and sparse tensors sparse.
/// `loads` is for compressed-tensors.
pub(super) fn keep_codings(plan: &mut Plan, stored: &StoredDir, loads: Option<&Loads>) {
    let mut shared = SharedTreatments::default();
    for tensor in &mut plan.tensors {
        let source = &stored.tensors[tensor.index];
        tensor.was_sparse = plan.profile == OutputFormat::Briquette && source.coding.storage == Storage::Bitmask;
        keep_codes(plan.profile, tensor, source, loads);
        tensor.share(&mut shared);
    }
}

fn keep_codes(profile: OutputFormat, tensor: &mut TensorPlan, source: &StoredTensor, loads: Option<&Loads>) {
    let Some(codes) = source.coding.codes else { return };
    let refused = loads.and_then(|loads| loads.refuses(tensor));
    match refused.map_or_else(|| holds(profile, source, codes).map_err(String::from), Err) {
        Ok(()) => {
            tensor.rows = source.rows();
            tensor.quant = quant_of(source, codes, profile);
        }
        Err(why) => tensor.skipped = Some(format!("decoded: {why}")),
    }
}

/// Whether a format can hold these codes, or why not.
fn holds(profile: OutputFormat, source: &StoredTensor, codes: Codes) -> Result<(), &'static str> {
    match profile {
        OutputFormat::Briquette | OutputFormat::CompressedTensors
            if source.activations == Some(formats::ActivationRounding::Other) =>
        {
            Err("its activations are rounded in a way that is not kept")
        }
        OutputFormat::Briquette => Ok(()),
        OutputFormat::Dense | OutputFormat::Burnpack => Err("the format holds floats only"),
        OutputFormat::CompressedTensors if codes.grid == GridKind::Asymmetric || ![4, 8].contains(&codes.bits) => {
            Err("compressed-tensors holds symmetric int8 and int4 only")
        }
        OutputFormat::CompressedTensors if source.axis == OutputAxis::Last => {
            Err("compressed-tensors wants weights [out, in]")
        }
        OutputFormat::CompressedTensors => Ok(()),
    }
}

fn quant_of(source: &StoredTensor, codes: Codes, profile: OutputFormat) -> Option<Quant> {
    let scale = if profile == OutputFormat::CompressedTensors { ScaleType::F32 } else { codes.scale };
    // The range is never asked: the scales are there.
    let spec = QuantSpec { grid: codes.grid()?, grouping: codes.grouping, range: Range::AbsMax, scale };
    let activations = match source.activations {
        Some(formats::ActivationRounding::Symmetric | formats::ActivationRounding::SymmetricFull) => {
            Activations::DynamicSymmetric
        }
        Some(formats::ActivationRounding::Asymmetric) => Activations::DynamicAsymmetric,
        None | Some(formats::ActivationRounding::Other) => Activations::Float,
    };
    Some(Quant { spec, activations, is_given: true })
}
