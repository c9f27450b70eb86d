//! Coupling groups: channels, heads and experts that must be removed together.
//!
//! Every axis of every tensor is an array of element ids in one union-find, and id 0 is fixed. Each primitive has one rule, which unites
//! the ids of elements that must be removed together. Elements of weights with equal ids form a unit, and units that lie in the same
//! axes of the same weights form a group. A network keeps working if the same number of units of a group is removed from all its axes.
//!
//! Axes are fixed if they belong to the graph's inputs or outputs, or to operations without a rule.

mod axes;
mod groups;
mod reshape;
mod rules;
mod segments;
mod uses;

pub use groups::{CouplingGroup, UnitPlace, parameters_left};

use crate::graph::Graph;
use crate::lower::Lowered;
use briquette_core::Result;

/// Finds the groups of a graph with two units or more.
///
/// # Errors
/// Input: the axes of all tensors together have more than 2²⁸ elements.
pub fn coupling_groups(graph: &Graph, lowered: &Lowered) -> Result<Vec<CouplingGroup>> {
    let mut axes = axes::Axes::of(graph, lowered)?;
    let uses = uses::Uses::of(lowered);
    for step in &lowered.steps {
        rules::apply(&mut axes, &uses, lowered, step)?;
    }
    for output in &graph.outputs {
        axes.fix_value(*output);
    }
    Ok(groups::groups(graph, &mut axes))
}

#[cfg(test)]
mod tests;
