//! The element ids of each axis of each tensor.

use super::unit::{AxisUnits, UnitId};
use crate::graph::{Graph, Operand, ValueId};
use crate::lower::Lowered;
use crate::union_find::{FIXED, UnionFind};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// The ids of the elements along each axis of a tensor.
pub(super) type AxisIds = Vec<Vec<u32>>;

/// The ids of all tensors, and their sets.
pub(super) struct Axes {
    pub(super) sets: UnionFind,
    values: Vec<AxisIds>,
    pub(super) weights: Vec<AxisIds>,
}

impl Axes {
    /// Gives weights new ids and inputs the fixed id.
    pub(super) fn of(graph: &Graph, lowered: &Lowered) -> Result<Self> {
        let mut sets = UnionFind::new();
        let mut weights = Vec::with_capacity(graph.weights.len());
        for weight in &graph.weights {
            let ids: Option<AxisIds> = weight.shape.0.iter().map(|&extent| sets.fresh(extent)).collect();
            weights.push(ids.ok_or_else(|| too_many().at(&weight.name))?);
        }
        let mut values = vec![AxisIds::new(); lowered.shapes.len()];
        let mut n_ids = 0_usize;
        for shape in &lowered.shapes {
            n_ids = shape.iter().fold(n_ids, |n, extent| n.saturating_add(*extent));
        }
        if n_ids > 1 << 28 {
            return Err(too_many());
        }
        for input in &graph.inputs {
            values[input.value.0] = input.shape.iter().map(|&extent| vec![FIXED; extent]).collect();
        }
        Ok(Self { sets, values, weights })
    }

    /// The ids of an operand.
    pub(super) fn get(&self, operand: Operand) -> &AxisIds {
        match operand {
            Operand::Value(value) => &self.values[value.0],
            Operand::Weight(weight) => &self.weights[weight.0],
        }
    }

    pub(super) fn set(&mut self, value: ValueId, ids: AxisIds) {
        self.values[value.0] = ids;
    }

    /// Fixes all axes of a value.
    pub(super) fn fix_value(&mut self, value: ValueId) {
        self.fix(value.into());
    }

    /// Fixes all axes of an operand.
    pub(super) fn fix(&mut self, operand: Operand) {
        let ids = match operand {
            Operand::Value(value) => &self.values[value.0],
            Operand::Weight(weight) => &self.weights[weight.0],
        };
        for axis in ids {
            self.sets.fix(axis);
        }
    }

    /// The units along each axis of a value; an axis without units is empty.
    pub(super) fn units_of(&mut self, value: ValueId, unit_of: &BTreeMap<u32, UnitId>) -> Vec<AxisUnits> {
        let Self { sets, values, .. } = self;
        let units = |ids: &Vec<u32>| {
            let found: AxisUnits = ids.iter().map(|&id| unit_of.get(&sets.root(id)).copied()).collect();
            if found.iter().any(Option::is_some) { found } else { AxisUnits::new() }
        };
        values[value.0].iter().map(units).collect()
    }

    /// New ids.
    pub(super) fn fresh(&mut self, n: usize) -> Result<Vec<u32>> {
        self.sets.fresh(n).ok_or_else(too_many)
    }
}

fn too_many() -> Error {
    Error::input("the axes of its tensors have too many elements, expected at most 268435456")
}
