//! Weight norms: directions and lengths, by their names and shapes.

use super::neighbours::{NORM_ENDS, Neighbours};
use briquette_core::{OutputAxis, Role, Rows, Shape};
use briquette_formats::TensorInfo;
use briquette_writer::NormGroups;
use briquette_writer::known::{Known, Reason};

/// Returns the name of the lengths, if the name may belong to directions.
pub(crate) fn lengths_of(directions: &str) -> Option<String> {
    NORM_ENDS.iter().find_map(|(end, other)| Some(format!("{}{other}", directions.strip_suffix(end)?)))
}

/// Returns the layer of directions or lengths: `ups.0` for `ups.0.weight_v` and for
/// `ups.0.parametrizations.weight.original1`.
pub(super) fn layer_of(name: &str) -> &str {
    let owner = name.rsplit_once('.').map_or("", |(owner, _)| owner);
    owner
        .strip_suffix("weight")
        .and_then(|owner| owner.strip_suffix("parametrizations."))
        .map_or(owner, |owner| owner.strip_suffix('.').unwrap_or(owner))
}

/// Returns the role of directions with matching lengths, and of lengths with matching directions.
pub(super) fn of(info: &TensorInfo, near: &Neighbours) -> Option<Known> {
    let fits = |directions: &Shape, lengths: &Shape| {
        NormGroups::of(directions, Rows::of(directions, OutputAxis::First), lengths).is_some()
    };
    let beside = |end: &str, other: &str| near.named(&format!("{}{other}", info.name.strip_suffix(end)?));
    for (directions, lengths) in NORM_ENDS {
        if beside(directions, lengths).is_some_and(|lengths| fits(&info.shape, lengths)) {
            let role = if info.shape.rank() == 2 { Role::Linear } else { Role::Conv };
            return Some(Known::new(role, Reason::WeightNormDirections));
        }
        if beside(lengths, directions).is_some_and(|directions| fits(directions, &info.shape)) {
            return Some(Known::new(Role::Parameter, Reason::WeightNormLengths));
        }
    }
    None
}
