//! Convolution filters: tensors of rank 3 to 5 called `weight`, and their output axis.

use super::matrices;
use super::neighbours::{Name, Neighbours};
use briquette_core::{OutputAxis, Role};
use briquette_writer::known::{Known, Reason};

/// Words in the names of transposed convolutions.
const TRANSPOSED: [&str; 6] = ["transpose", "deconv", "conv_trans", "convtrans", "trans_conv", "transconv"];
/// Layers of DPT and Depth Anything that enlarge by a transposed convolution with an even kernel, or reduce by
/// a convolution with an odd one.
const RESIZED: [&str; 2] = ["resize", "resize_layers"];

/// Returns the role of a tensor of rank 3 to 5 whose last segment shows no role.
///
/// `is_transposed` is true if the file gives the class of its layer as a transposed convolution.
pub(super) fn of(name: Name, shape: &[usize], near: &Neighbours, is_transposed: bool) -> Known {
    if shape.iter().filter(|&&n| n != 1).count() <= 1 {
        return Known::new(Role::Parameter, Reason::OneExtent);
    }
    let bias = near.shape(name.owner, "bias");
    if bias.is_some_and(|bias| bias.0 == shape) {
        return Known::new(Role::Norm, Reason::BiasOfItsShape);
    }
    if name.leaf != "weight" {
        let is_norm = name.owners().any(matrices::is_norm);
        let (role, why) = if is_norm { (Role::Norm, Reason::NormName) } else { (Role::Unknown, Reason::NoRule) };
        return Known::new(role, why);
    }
    // No norm has four axes longer than one. With three axes, the layer itself must have the name of a norm.
    if bias.is_none() && shape.len() == 3 && matrices::is_norm_layer(name) {
        return Known::new(Role::Norm, Reason::NormName);
    }
    if bias.is_none() && shape[0] == 1 && matrices::is_table(name) {
        return Known::new(Role::Parameter, Reason::EmbeddingName);
    }
    match transposed(name, shape, near, is_transposed) {
        Some(why) if why == Reason::GroupedTransposed => Known::new(Role::Conv, why),
        Some(why) => Known { role: Role::Conv, axis: OutputAxis::Second, why },
        None => Known::new(Role::Conv, Reason::Filters),
    }
}

/// Returns the evidence that filters belong to a transposed convolution, `[in, out / groups, ..]`.
///
/// With groups, no axis is the output axis. Rows by input mix fewer outputs than rows by position within a
/// group.
fn transposed(name: Name, shape: &[usize], near: &Neighbours, is_class: bool) -> Option<Reason> {
    let n_outputs =
        [(near.bias(name.owner), Reason::TransposedByBias), (near.next_norm(name), Reason::TransposedByNorm)];
    for (n, why) in n_outputs {
        match n {
            Some(n) if n == shape[0] && n != shape[1] && !is_class => return None,
            Some(n) if n != shape[0] && n == shape[1] => return Some(why),
            Some(n) if n != shape[0] && is_grouped(shape, n) => return Some(Reason::GroupedTransposed),
            _ => {}
        }
    }
    let word = name.word();
    let is_even = shape.last().is_some_and(|n| n.is_multiple_of(2));
    let why = match () {
        () if is_class => Reason::TransposedByClass,
        () if TRANSPOSED.iter().any(|part| word.contains(part)) => Reason::TransposedByName,
        () if RESIZED.contains(&word) && is_even => Reason::TransposedByName,
        () => return None,
    };
    let has_groups = n_outputs.iter().any(|(n, _)| n.is_some_and(|n| n != shape[1])) || shape[1] == 1;
    Some(if has_groups { Reason::GroupedTransposed } else { why })
}

/// Returns whether filters `[in, out / groups, ..]` can have this many outputs in more than one group.
fn is_grouped(shape: &[usize], n_outputs: usize) -> bool {
    let n_groups = n_outputs.checked_div(shape[1]).unwrap_or(0);
    n_groups > 1 && n_groups * shape[1] == n_outputs && shape[0].is_multiple_of(n_groups)
}
