//! int8 codes with fixed scales of activations, from data or from the checkpoint.

#[cfg(feature = "model")]
mod layer;
#[cfg(feature = "model")]
mod layers;
mod norm;
#[cfg(feature = "model")]
mod observe;
mod stored;

#[cfg(feature = "model")]
pub(super) use layers::quantize;
pub(super) use stored::with_stored_codes;

use briquette_graph::Weight;
use briquette_graph::to_onnx::{LinearForm, TableForm, WeightForms};
use briquette_methods::quant::ActivationRange;
use briquette_recipe::raw::RawData;
use serde::Serialize;

/// How convolutions and linear layers get int8 codes with static activations.
#[derive(Debug, Clone, Default)]
pub struct StaticInt8 {
    /// The images, under `eval`.
    pub data: RawData,
    /// The maximum number of images to run.
    pub n_samples: usize,
    /// The seed of the sample.
    pub seed: u64,
    /// How the range of each activation is chosen.
    pub range: ActivationRange,
    /// Whether codes of weights have 7 bits, for CPUs that add pairs of products in 16 bits.
    pub reduce_range: bool,
}

/// Figures of a calibration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaticFigures {
    /// How ranges were chosen.
    pub range: &'static str,
    /// The number of images that ran.
    pub n_items: usize,
    /// The number of images that did not decode.
    pub n_skipped: usize,
    /// The number of values with an observed range.
    pub n_ranges: usize,
}

/// Returns an error: this build cannot run models.
#[cfg(not(feature = "model"))]
pub(super) fn quantize<'a>(
    _: &'a briquette_formats::Checkpoint,
    _: briquette_graph::to_onnx::static_int8::StaticPlan,
    _: &StaticInt8,
    _: &briquette_writer::RunOptions,
) -> briquette_core::Result<(
    briquette_graph::to_onnx::OnnxNetwork,
    Box<dyn super::weight_values::CodeSource + 'a>,
    StaticFigures,
)> {
    Err(briquette_core::Error::lacks_feature("model", "run models"))
}

/// All weights as floats: codes are chosen afterwards.
pub(super) struct FloatForms;

impl WeightForms for FloatForms {
    fn linear(&self, _: &Weight) -> LinearForm {
        LinearForm::Float
    }

    fn table(&self, _: &Weight) -> TableForm {
        TableForm::Float
    }

    fn is_transposed_in_memory(&self, _: &Weight) -> bool {
        true
    }
}
