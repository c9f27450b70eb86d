//! The changed weights of a folded model.

use crate::transform::changed::OutputTensor;
use crate::transform::edit::ValueEdit;
use crate::transform::headed::HeadedModel;
use crate::transform::rotated::Rotated;
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo};
use briquette_graph::absorb::{ScalePlace, ScaledAxis};
use briquette_graph::{Graph, WeightId};
use briquette_methods::rotation::ChannelRotation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Changes of weights, and vectors that are computed.
pub(super) struct Edits<'a> {
    checkpoint: &'a Checkpoint,
    model: &'a HeadedModel,
    edits: BTreeMap<WeightId, ValueEdit>,
    rotated: BTreeMap<WeightId, Rotated>,
    made: BTreeMap<WeightId, Vec<f32>>,
}

impl<'a> Edits<'a> {
    pub(super) fn of(checkpoint: &'a Checkpoint, model: &'a HeadedModel) -> Self {
        Self { checkpoint, model, edits: BTreeMap::new(), rotated: BTreeMap::new(), made: BTreeMap::new() }
    }

    pub(super) fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.model.graph
    }

    /// Returns the change of a weight.
    pub(super) fn of_weight(&mut self, weight: WeightId) -> &mut ValueEdit {
        self.edits.entry(weight).or_default()
    }

    /// Sets all values of a weight.
    pub(super) fn set(&mut self, weight: WeightId, values: Vec<f32>) {
        self.made.insert(weight, values);
    }

    /// Rotates groups of elements along an axis of a weight, after the other changes of the weight.
    pub(super) fn rotate(
        &mut self,
        weight: WeightId,
        axis: usize,
        groups: Vec<Vec<usize>>,
        rotation: &Arc<ChannelRotation>,
    ) {
        self.rotated.entry(weight).or_default().turn(axis, groups, rotation);
    }

    /// Returns the values of a weight after all changes so far, without rotations.
    ///
    /// # Errors
    /// See [`HeadedModel::values`].
    pub(super) fn values(&self, weight: WeightId) -> Result<Vec<f32>> {
        if let Some(values) = self.made.get(&weight) {
            return Ok(values.clone());
        }
        let mut values = self.model.values(self.checkpoint, weight)?;
        if let Some(edit) = self.edits.get(&weight) {
            edit.apply(&self.graph().weights[weight.0].shape.0, 0, &mut values);
        }
        Ok(values)
    }

    /// Divides a value's channels by scales, and multiplies the layers that read it.
    pub(super) fn scale(&mut self, place: &ScalePlace, scales: &[f64]) {
        for producer in &place.producers {
            let edit = self.of_weight(producer.weight);
            edit.offset = producer.offset;
            edit.multiply(producer.axis, &factors(producer, scales, |scale| 1.0 / scale));
        }
        for reader in &place.readers {
            let inputs = &reader.inputs;
            self.of_weight(inputs.weight).multiply(inputs.axis, &factors(inputs, scales, |scale| scale));
        }
    }

    /// Returns the largest magnitude of the elements of each unit.
    ///
    /// # Errors
    /// See [`HeadedModel::values`].
    pub(super) fn ranges(&self, axis: &ScaledAxis, n_units: usize) -> Result<Vec<f64>> {
        let (values, shape) = (self.values(axis.weight)?, &self.graph().weights[axis.weight.0].shape.0);
        let inner: usize = shape[axis.axis + 1..].iter().product::<usize>().max(1);
        let factors = self.norm_factors(axis)?;
        let mut found = vec![0.0_f64; n_units];
        for (at, value) in values.iter().enumerate() {
            let element = at / inner % axis.units.len();
            if let Some(unit) = axis.units[element] {
                let size = f64::from(value.abs()) * factors.as_ref().map_or(1.0, |factors| factors[element]);
                found[unit as usize] = found[unit as usize].max(size);
            }
        }
        Ok(found)
    }

    /// Returns the factors of the batch norm between a layer and a value.
    fn norm_factors(&self, axis: &ScaledAxis) -> Result<Option<Vec<f64>>> {
        let Some(norm) = axis.norm else { return Ok(None) };
        let (weight, variance) = (self.values(norm.weight)?, self.values(norm.variance)?);
        let factor = |(weight, variance): (&f32, &f32)| {
            f64::from(weight.abs()) / (f64::from(*variance) + norm.eps).max(f64::MIN_POSITIVE).sqrt()
        };
        Ok(Some(weight.iter().zip(&variance).map(factor).collect()))
    }

    /// Returns the source of a tensor of the folded model.
    pub(super) fn output(&self, info: &TensorInfo, place: usize) -> OutputTensor {
        let Some(weight) = self.graph().weight(&info.name) else { return OutputTensor::Copied(place) };
        let edit = self.edits.get(&weight);
        if let Some(rotated) = self.rotated.get(&weight) {
            let edit = edit.cloned().unwrap_or_default();
            return OutputTensor::Rotated(place, rotated.after(edit));
        }
        match (self.made.get(&weight), edit) {
            (Some(values), _) => OutputTensor::Made(values.clone()),
            (None, Some(edit)) => OutputTensor::Edited(place, edit.clone()),
            (None, None) => OutputTensor::Copied(place),
        }
    }
}

/// Returns the factor of each element of an axis.
fn factors(axis: &ScaledAxis, scales: &[f64], of_scale: fn(f64) -> f64) -> Vec<f64> {
    axis.units.iter().map(|unit| unit.map_or(1.0, |unit| of_scale(scales[unit as usize]))).collect()
}
