//! Experts that are stacked in one tensor, and the routers that choose among experts.

use super::neighbours::{Name, Neighbours};
use briquette_core::OutputAxis;
use briquette_core::Role;
use briquette_writer::known::{Known, Reason};

/// Names of tensors that read the block's input. `OUTWARD` has those that compute its output.
const INWARD: [&str; 6] = ["gate_up_proj", "gate_proj", "up_proj", "w1", "w3", "input_linear"];
const OUTWARD: [&str; 3] = ["down_proj", "w2", "output_linear"];
/// Pairs of tensors in a block whose shapes together show the output axis.
const PAIRS: [(&str, &str); 2] = [("gate_up_proj", "down_proj"), ("input_linear", "output_linear")];

/// Returns whether a matrix is a router, which chooses experts.
pub(super) fn is_router(name: Name, near: &Neighbours) -> bool {
    let is_gate = name.layer() == "gate" && near.has_experts(name.block());
    name.leaf == "weight" && (is_gate || name.owners().any(|owner| ["router", "shared_expert_gate"].contains(&owner)))
}

/// Returns the role of a tensor `[experts, .., ..]` if its name indicates experts.
pub(super) fn of(name: Name, shape: [usize; 3], near: &Neighbours, hidden_sizes: &[usize]) -> Option<Known> {
    let is_stack = |owner: &str| owner.contains("expert") || owner.contains("moe");
    let word = if name.leaf == "weight" { name.layer() } else { name.leaf };
    let (is_inward, is_outward) = (INWARD.contains(&word), OUTWARD.contains(&word));
    if !name.owners().any(is_stack) || !is_inward && !is_outward {
        return None;
    }
    let is_turned = turned_by_size(shape, is_inward, hidden_sizes).or_else(|| turned_by_pair(name, word, near));
    Some(match is_turned {
        Some(false) => Known { role: Role::Linear, axis: OutputAxis::Stacked, why: Reason::Experts },
        Some(true) => Known::new(Role::Unknown, Reason::TurnedExperts),
        None => Known::new(Role::Unknown, Reason::ExpertsEitherWay),
    })
}

/// Returns whether experts are stored as `[in, out]`, if exactly one axis has the hidden size of the model.
fn turned_by_size([_, middle, last]: [usize; 3], is_inward: bool, hidden_sizes: &[usize]) -> Option<bool> {
    let is_hidden = |n: usize| hidden_sizes.contains(&n);
    match (is_hidden(middle), is_hidden(last)) {
        (true, false) => Some(is_inward),
        (false, true) => Some(!is_inward),
        _ => None,
    }
}

/// Returns whether a pair in a block is stored as `[in, out]`.
///
/// `[2 * inner, hidden]` pairs with `[hidden, inner]`, and `[hidden, 2 * inner]` with `[inner, hidden]`.
fn turned_by_pair(name: Name, word: &str, near: &Neighbours) -> Option<bool> {
    let (up, down) = PAIRS.into_iter().find(|(up, down)| [*up, *down].contains(&word))?;
    let shape = |word: &str| -> Option<[usize; 3]> {
        let found = match name.leaf {
            "weight" => near.shape(name.block(), &format!("{word}.weight")),
            _ => near.shape(name.owner, word),
        };
        found?.0.as_slice().try_into().ok()
    };
    let ([_, up_middle, up_last], [_, down_middle, down_last]) = (shape(up)?, shape(down)?);
    let is_straight = up_last == down_middle && up_middle == 2 * down_last;
    let is_turned = up_middle == down_last && up_last == 2 * down_middle;
    (is_straight != is_turned).then_some(is_turned)
}
