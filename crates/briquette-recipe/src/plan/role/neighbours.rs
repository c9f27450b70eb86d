//! The neighbours of a tensor: tensors under the same owner.

use briquette_core::Shape;
use briquette_formats::TensorInfo;
use std::collections::{HashMap, HashSet};

/// Last segments of the names that are indexed. They are few, so that a model with a million tensors is cheap.
const WITNESSES: [&str; 2] = ["bias", "running_mean"];

/// Suffixes of the names of directions and lengths of a weight norm.
///
/// The first pair is torch's parametrization. The second is its older version, which also has names such as
/// `weight_hh_l0_v`.
pub(super) const NORM_ENDS: [(&str, &str); 2] = [(".original1", ".original0"), ("_v", "_g")];

/// A name split at its last dots: `a.b.weight` is the `weight` of the layer `b` in the block `a`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name<'a> {
    /// Everything before the last dot, in the original case.
    pub(super) owner: &'a str,
    lower_owner: &'a str,
    /// The last segment, in lower case.
    pub(super) leaf: &'a str,
}

impl<'a> Name<'a> {
    /// Splits a name; `lower` is the same name in lower case.
    pub(super) fn of(name: &'a str, lower: &'a str) -> Self {
        let (lower_owner, leaf) = lower.rsplit_once('.').unwrap_or(("", lower));
        Self { owner: &name[..lower_owner.len()], lower_owner, leaf }
    }

    /// Returns the layer's name: the last segment of the owner, in lower case.
    pub(super) fn layer(&self) -> &'a str {
        self.lower_owner.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the last segment of the owner that is not a number, in lower case. A layer in a list gets the
    /// name of the list.
    pub(super) fn word(&self) -> &'a str {
        let is_number = |segment: &&str| segment.bytes().all(|byte| byte.is_ascii_digit());
        self.lower_owner.rsplit('.').find(|segment| !is_number(segment)).unwrap_or_default()
    }

    /// Returns the block of the layer: the owner without its last segment, in the original case.
    pub(super) fn block(&self) -> &'a str {
        self.owner.rsplit_once('.').map_or("", |(block, _)| block)
    }

    /// Returns the segments of the owner, in lower case.
    pub(super) fn owners(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.lower_owner.split('.')
    }
}

/// Returns whether the name may belong to a part of a weight norm.
fn is_of_norm(name: &str) -> bool {
    NORM_ENDS.iter().any(|(directions, lengths)| name.ends_with(directions) || name.ends_with(lengths))
}

/// The shapes of biases, running statistics, stacked matrices and parts of weight norms, and the blocks with
/// experts.
#[derive(Debug, Default)]
pub(super) struct Neighbours<'a> {
    shapes: HashMap<&'a str, &'a Shape>,
    with_experts: HashSet<&'a str>,
}

impl<'a> Neighbours<'a> {
    pub(super) fn of(tensors: &'a [TensorInfo]) -> Self {
        let mut found = Self::default();
        for info in tensors {
            let leaf = info.name.rsplit('.').next().unwrap_or_default();
            if WITNESSES.contains(&leaf) || info.shape.rank() == 3 || is_of_norm(&info.name) {
                found.shapes.insert(&info.name, &info.shape);
            }
            if let Some((block, _)) = info.name.split_once(".experts.") {
                found.with_experts.insert(block);
            }
        }
        found
    }

    /// Returns the shape of `owner.leaf`, if it is indexed.
    pub(super) fn shape(&self, owner: &str, leaf: &str) -> Option<&'a Shape> {
        match owner {
            _ if self.shapes.is_empty() => None,
            "" => self.shapes.get(leaf).copied(),
            _ => self.shapes.get(format!("{owner}.{leaf}").as_str()).copied(),
        }
    }

    /// Returns the shape of the tensor with this name, if it is indexed.
    pub(super) fn named(&self, name: &str) -> Option<&'a Shape> {
        self.shapes.get(name).copied()
    }

    /// Returns the length of the vector `owner.bias`.
    pub(super) fn bias(&self, owner: &str) -> Option<usize> {
        match self.shape(owner, "bias")?.0.as_slice() {
            [n] => Some(*n),
            _ => None,
        }
    }

    /// Returns the number of channels of the next layer in a sequence, if that is a batch norm: `main.1` after
    /// `main.0`.
    pub(super) fn next_norm(&self, name: Name) -> Option<usize> {
        let place: usize = name.layer().parse().ok()?;
        let next = match name.block() {
            "" => format!("{}", place.checked_add(1)?),
            block => format!("{block}.{}", place.checked_add(1)?),
        };
        match self.shape(&next, "running_mean")?.0.as_slice() {
            [n] => Some(*n),
            _ => None,
        }
    }

    /// Returns whether the block has experts.
    pub(super) fn has_experts(&self, block: &str) -> bool {
        self.with_experts.contains(block)
    }
}
