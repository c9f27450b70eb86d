//! Coupling groups: channels, heads and experts that must be removed together.
//!
//! Every axis of every tensor is an array of element ids in one union-find, and id 0 is fixed. Each primitive has one rule, which unites
//! the ids of elements that must be removed together. Elements of weights with equal ids form a unit, and units that lie in the same
//! axes of the same weights form a group. A network keeps working if the same number of units of a group is removed from all its axes.
//!
//! Axes are fixed if they belong to the graph's inputs or outputs, or to operations without a rule.

mod axes;
mod groups;
mod kinds;
mod reshape;
mod rules;
mod segments;
mod unit;
mod uses;

pub use groups::{CouplingGroup, UnitPlace, parameters_left};
pub use kinds::GroupKind;
pub use unit::{AxisUnits, UnitId};

use crate::graph::{Graph, ValueId};
use crate::lower::Lowered;
use briquette_core::Result;

/// Every group of a graph, and the units that its values consist of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Couplings {
    /// The groups.
    pub groups: Vec<CouplingGroup>,
    /// The kind of each group.
    pub kinds: Vec<GroupKind>,
    /// The units of each axis of each value of the graph. An axis without units is empty.
    pub values: Vec<Vec<AxisUnits>>,
}

/// Finds the groups of a graph with two units or more.
///
/// # Errors
/// Input: the axes of all tensors together have more than 2²⁸ elements.
pub fn coupling_groups(graph: &Graph, lowered: &Lowered) -> Result<Vec<CouplingGroup>> {
    Ok(groups::groups(graph, &mut coupled_axes(graph, lowered)?).0)
}

/// Finds the groups of a graph, what they count, and the units of every value.
///
/// # Errors
/// See [`coupling_groups`].
pub fn couplings(graph: &Graph, lowered: &Lowered) -> Result<Couplings> {
    let mut axes = coupled_axes(graph, lowered)?;
    let (groups, unit_of) = groups::groups(graph, &mut axes);
    let kinds = kinds::kinds(graph, lowered, &mut axes, &groups, &unit_of);
    let values = (0..graph.values.len()).map(|value| axes.units_of(ValueId(value), &unit_of)).collect();
    Ok(Couplings { groups, kinds, values })
}

/// Applies the rule of every step.
fn coupled_axes(graph: &Graph, lowered: &Lowered) -> Result<axes::Axes> {
    let mut axes = axes::Axes::of(graph, lowered)?;
    let uses = uses::Uses::of(lowered);
    for step in &lowered.steps {
        rules::apply(&mut axes, &uses, lowered, step)?;
    }
    for output in &graph.outputs {
        axes.fix_value(*output);
    }
    Ok(axes)
}

#[cfg(test)]
mod tests;
