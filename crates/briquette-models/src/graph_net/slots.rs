//! Places of values during a run, which are reused after the last use of a value.

use super::steps::{GraphStep, StepInput};
use briquette_graph::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// The slots of all values of a program. Given values are in the first slots, in their order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ValueSlots {
    pub(super) steps: Vec<StepSlots>,
    /// The slots of the wanted values.
    pub(super) wanted: Vec<usize>,
    pub(super) n_slots: usize,
}

/// The slots of a step's inputs and outputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepSlots {
    pub(super) inputs: Vec<SlotInput>,
    /// `None` for an output that nothing uses.
    pub(super) outputs: Vec<Option<usize>>,
}

/// Where the input of a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotInput {
    /// A value that is used again.
    Kept(usize),
    /// The last use of a value, which frees its slot.
    Last(usize),
    /// The weight of a layer.
    Layer(usize),
    /// A constant that the graph holds, by the index of its weight.
    Constant(usize),
}

impl ValueSlots {
    /// Assigns slots to the values of steps.
    ///
    /// # Panics
    /// If a step uses a value that is neither given nor computed before.
    pub(super) fn of(steps: &[GraphStep], given: &[ValueId], wanted: &[ValueId]) -> Self {
        let last_uses = last_uses(steps, wanted);
        let mut places: BTreeMap<ValueId, usize> = given.iter().copied().zip(0..).collect();
        let (mut free, mut n_slots) = (Vec::new(), given.len());
        let mut found = Vec::with_capacity(steps.len());
        for (step, last) in steps.iter().zip(&last_uses) {
            let slot = |(index, source): (usize, &StepInput)| match source {
                StepInput::Layer(layer) => SlotInput::Layer(*layer),
                StepInput::Constant(weight) => SlotInput::Constant(*weight),
                StepInput::Value(value) => {
                    let slot = *places.get(value).unwrap_or_else(|| panic!("value {} was not computed", value.0));
                    if last.inputs.contains(&index) { SlotInput::Last(slot) } else { SlotInput::Kept(slot) }
                }
            };
            let inputs: Vec<SlotInput> = step.inputs.iter().enumerate().map(slot).collect();
            free.extend(inputs.iter().filter_map(|input| match input {
                SlotInput::Last(slot) => Some(*slot),
                _ => None,
            }));
            let mut output = |value: &ValueId| {
                let slot = free.pop().unwrap_or_else(|| {
                    n_slots += 1;
                    n_slots - 1
                });
                places.insert(*value, slot);
                slot
            };
            let outputs = step.outputs.iter().map(|value| (!last.unused.contains(value)).then(|| output(value)));
            let outputs = outputs.collect();
            found.push(StepSlots { inputs, outputs });
        }
        let slot = |value: &ValueId| *places.get(value).unwrap_or_else(|| panic!("value {} was not computed", value.0));
        Self { steps: found, wanted: wanted.iter().map(slot).collect(), n_slots }
    }
}

/// The values that end with a step.
#[derive(Default)]
struct LastUses {
    /// The inputs that are the last uses of their values.
    inputs: BTreeSet<usize>,
    /// Outputs that nothing uses.
    unused: BTreeSet<ValueId>,
}

fn last_uses(steps: &[GraphStep], wanted: &[ValueId]) -> Vec<LastUses> {
    let mut later: BTreeSet<ValueId> = wanted.iter().copied().collect();
    let mut found: Vec<LastUses> = Vec::with_capacity(steps.len());
    for step in steps.iter().rev() {
        let unused = step.outputs.iter().copied().filter(|value| !later.contains(value)).collect();
        let mut inputs = BTreeSet::new();
        for (index, source) in step.inputs.iter().enumerate().rev() {
            if let StepInput::Value(value) = source
                && later.insert(*value)
            {
                inputs.insert(index);
            }
        }
        found.push(LastUses { inputs, unused });
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph_net::steps::GraphCall;
    use briquette_graph::op::ElementFunction;

    fn step(inputs: &[usize], outputs: &[usize]) -> GraphStep {
        let inputs = inputs.iter().map(|value| StepInput::Value(ValueId(*value))).collect();
        let outputs = outputs.iter().map(|value| ValueId(*value)).collect();
        GraphStep { call: GraphCall::Function(ElementFunction::Add), inputs, outputs, drops: false }
    }

    #[test]
    fn slots_are_reused_after_the_last_use_of_a_value() {
        // 2 = f(0); 3 = f(2, 2, 0); 4, 5 = f(3); 6 = f(4, 1)
        let steps = [step(&[0], &[2]), step(&[2, 2, 0], &[3]), step(&[3], &[4, 5]), step(&[4, 1], &[6])];
        let found = ValueSlots::of(&steps, &[ValueId(0), ValueId(1)], &[ValueId(6), ValueId(1)]);
        assert_eq!(found.steps[0].inputs, [SlotInput::Kept(0)]);
        // A value that a step uses twice ends with the second use.
        assert_eq!(found.steps[1].inputs, [SlotInput::Kept(2), SlotInput::Last(2), SlotInput::Last(0)]);
        assert_eq!(found.steps[2].outputs[1], None, "nothing uses value 5");
        assert_eq!(found.steps[3].inputs[1], SlotInput::Kept(1), "the caller wants value 1");
        assert_eq!((found.wanted[1], found.n_slots), (1, 3));
    }
}
