//! `Conv1D`, which GPT-2 and related families use instead of linear layers: a matrix stored as `[in, out]`.

use super::neighbours::{Name, Neighbours};
use briquette_formats::TensorInfo;
use briquette_writer::known::Reason;

/// The names of `Conv1D` layers. Other families use these names for linear layers.
const LAYERS: [&str; 4] = ["c_attn", "c_fc", "c_proj", "q_attn"];
/// The `model_type` of families with `Conv1D`.
const FAMILIES: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];

/// Returns the evidence that layers with these names are `Conv1D`; `None` if they are linear layers.
pub(super) fn found(tensors: &[TensorInfo], near: &Neighbours, model_types: &[String]) -> Option<Reason> {
    let turned = tensors.iter().filter_map(|info| is_turned(info, near));
    let (mut n_turned, mut n_straight) = (0, 0);
    turned.for_each(|is_turned| if is_turned { n_turned += 1 } else { n_straight += 1 });
    let is_family = model_types.iter().any(|name| FAMILIES.contains(&name.as_str()));
    match n_turned > n_straight {
        true if is_family => Some(Reason::Conv1dOfFamily),
        true => Some(Reason::Conv1dByBias),
        false if is_family && n_straight == 0 => Some(Reason::Conv1dOfFamily),
        false => None,
    }
}

/// Returns whether a name may belong to the weight of a `Conv1D`.
pub(super) fn may_be(name: Name) -> bool {
    name.leaf == "weight" && LAYERS.contains(&name.layer())
}

/// Returns whether a possible `Conv1D` weight is stored as `[in, out]`; `None` if its bias does not show it.
fn is_turned(info: &TensorInfo, near: &Neighbours) -> Option<bool> {
    let name = Name::of(&info.name, &info.name);
    let [first, last] = info.shape.0.as_slice().try_into().ok().filter(|_| may_be(name))?;
    let bias = near.bias(name.owner).filter(|_| first != last)?;
    (bias == first || bias == last).then_some(bias == last)
}
