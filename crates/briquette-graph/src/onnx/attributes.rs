//! Attributes of nodes with their defaults.

use briquette_formats::onnx::{AttributeValue, Node};

/// Returns an integer.
pub(super) fn int(node: &Node, name: &str, default: i64) -> i64 {
    match node.attribute(name) {
        Some(AttributeValue::Int(value)) => *value,
        _ => default,
    }
}

/// Returns a float.
pub(super) fn float(node: &Node, name: &str, default: f32) -> f64 {
    match node.attribute(name) {
        Some(AttributeValue::Float(value)) => f64::from(*value),
        _ => f64::from(default),
    }
}

/// Returns integers, if the attribute is there.
pub(super) fn ints<'a>(node: &'a Node, name: &str) -> Option<&'a [i64]> {
    match node.attribute(name) {
        Some(AttributeValue::Ints(values)) => Some(values),
        _ => None,
    }
}

/// Returns extents, or `n` times a default; `None` if one is negative or their number differs.
pub(super) fn extents(node: &Node, name: &str, n: usize, default: usize) -> Option<Vec<usize>> {
    match ints(node, name) {
        Some(values) if values.len() == n => values.iter().map(|&value| usize::try_from(value).ok()).collect(),
        Some(_) => None,
        None => Some(vec![default; n]),
    }
}

/// Returns a text.
pub(super) fn text<'a>(node: &'a Node, name: &str, default: &'a str) -> &'a str {
    match node.attribute(name) {
        Some(AttributeValue::Bytes(bytes)) => std::str::from_utf8(bytes).unwrap_or(default),
        _ => default,
    }
}

/// Returns the axis that a number means, counted from the end if it is negative.
pub(super) fn axis(value: i64, rank: usize) -> Option<usize> {
    let rank_signed = i64::try_from(rank).ok()?;
    let value = if value < 0 { value.checked_add(rank_signed)? } else { value };
    usize::try_from(value).ok().filter(|axis| *axis < rank)
}
