//! Runs a model on images, and observes its activations.

use super::layer::InputChannels;
use super::{StaticFigures, StaticInt8};
use crate::arch::arch_of;
use crate::memory::run_model;
use crate::training::spec_of;
use briquette_core::{Error, Result};
use briquette_eval::{ObservedValue, Samples, ValueStatistics, value_ranges};
use briquette_formats::Checkpoint;
use briquette_graph::ValueId;
use briquette_graph::to_onnx::static_int8::{ActivationScale, StaticPlan};
use briquette_writer::RunOptions;
use std::collections::BTreeMap;

/// Observed ranges of activations.
pub(super) struct ObservedRanges {
    scales: BTreeMap<ValueId, ActivationScale>,
    channels: BTreeMap<ValueId, InputChannels>,
    pub(super) figures: StaticFigures,
}

impl ObservedRanges {
    /// Returns the scale of an observed value.
    pub(super) fn scale(&self, id: ValueId) -> ActivationScale {
        self.scales[&id]
    }

    /// Returns the means of the channels of an observed value.
    pub(super) fn channels(&self, id: ValueId) -> Option<&InputChannels> {
        self.channels.get(&id)
    }
}

/// Observes the values of a plan.
///
/// # Errors
/// See [`value_ranges`].
pub(super) fn observed(
    checkpoint: &Checkpoint,
    plan: &StaticPlan,
    how: &StaticInt8,
    options: &RunOptions,
) -> Result<ObservedRanges> {
    let device = briquette_models::device(&options.device)?;
    let arch = arch_of(None, checkpoint)?;
    let spec = spec_of(&how.data);
    let data = spec.open(arch.task())?;
    let values: Vec<ObservedValue> =
        plan.observed().into_iter().map(|(id, range_of)| ObservedValue::new(id, range_of)).collect();
    let samples = Samples { n: how.n_samples, seed: how.seed };
    options.progress.begin("calibrate", 0);
    let mut after_batch = |done, total| {
        options.progress.items(done, total);
        options.stop.check()
    };
    let over = (&data, &spec);
    let found = run_model(options, None, &device, || {
        value_ranges(checkpoint, arch, &device, over, (samples, how.range), &values, &mut after_batch)
    })?;
    let range = how.range.name();
    let figures = StaticFigures { range, n_items: found.n_items, n_skipped: found.n_skipped, n_ranges: values.len() };
    let mut ranges = ObservedRanges { scales: BTreeMap::new(), channels: BTreeMap::new(), figures };
    for (id, statistics) in found.values {
        if !statistics.affine().scale.is_normal() {
            let name = &plan.network().graph.values[id.0];
            return Err(Error::refused("an activation has a range without a scale; use other images").at(name));
        }
        ranges.scales.insert(id, scale_of(&statistics));
        let ValueStatistics { means, rounded_means, .. } = statistics;
        ranges.channels.insert(id, InputChannels { means, rounded_means });
    }
    Ok(ranges)
}

/// Returns the scale of uint8 codes, whose zero point is 128 above that of int8 codes.
fn scale_of(statistics: &ValueStatistics) -> ActivationScale {
    let affine = statistics.affine();
    ActivationScale { scale: affine.scale, zero: (i16::from(affine.zero) + 128) as u8 }
}
