//! The headers of a checkpoint, as of a network whose layers have full rank.

use crate::headers::Headers;
use briquette_core::{OutputAxis, Shape};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The tensors that a graph is built from.
#[derive(Debug)]
pub struct GraphHeaders<'a> {
    tensors: Cow<'a, [TensorInfo]>,
    layout: Option<WeightLayout>,
}

impl<'a> GraphHeaders<'a> {
    /// Reads the headers of a checkpoint. See [`new`](Self::new).
    pub fn of(checkpoint: &'a Checkpoint) -> Self {
        Self::new(checkpoint.tensors(), checkpoint.layout())
    }

    /// Takes headers. Two factors `X.down.weight` and `X.weight` become the weight that they are factors of.
    pub fn new(tensors: &'a [TensorInfo], layout: Option<WeightLayout>) -> Self {
        let factors: BTreeMap<&str, &TensorInfo> =
            tensors.iter().filter_map(|info| Some((info.name.strip_suffix(".down.weight")?, info))).collect();
        if factors.is_empty() {
            return Self { tensors: Cow::Borrowed(tensors), layout };
        }
        let paths: BTreeSet<&str> = tensors.iter().filter_map(|info| info.name.strip_suffix(".weight")).collect();
        let whole = |info: &TensorInfo| match info.name.strip_suffix(".down.weight") {
            Some(path) if paths.contains(path) => None,
            _ => {
                let down = info.name.strip_suffix(".weight").and_then(|path| factors.get(path));
                Some(down.and_then(|down| product(info, down, layout)).unwrap_or_else(|| info.clone()))
            }
        };
        Self { tensors: tensors.iter().filter_map(whole).collect(), layout }
    }

    /// Returns the same tensors in the other layout of matrices.
    #[must_use]
    pub fn turned(&self) -> Self {
        let layout = match self.layout {
            Some(WeightLayout::Burn) => WeightLayout::Torch,
            _ => WeightLayout::Burn,
        };
        Self { tensors: self.tensors.clone(), layout: Some(layout) }
    }

    /// Copies headers.
    pub fn copied(headers: &Headers) -> GraphHeaders<'static> {
        let layout = if headers.layout() == OutputAxis::Last { WeightLayout::Burn } else { WeightLayout::Torch };
        let tensors = headers.names().filter_map(|name| headers.get(name)).cloned().collect();
        GraphHeaders { tensors, layout: Some(layout) }
    }

    /// Returns the tensors by name.
    pub fn headers(&self) -> Headers<'_> {
        Headers::new(&self.tensors, self.layout)
    }
}

/// Returns the header of the product of two factors; `None` if they cannot be multiplied.
fn product(up: &TensorInfo, down: &TensorInfo, layout: Option<WeightLayout>) -> Option<TensorInfo> {
    let (&[a, b], &[c, d]) = (up.shape.0.as_slice(), down.shape.0.as_slice()) else { return None };
    // `[out, rank] · [rank, in]`, or in burn's layout `[in, rank] · [rank, out]`.
    let (shape, fits) = if layout == Some(WeightLayout::Burn) { ([c, b], a == d) } else { ([a, d], b == c) };
    fits.then(|| TensorInfo { shape: Shape(shape.to_vec()).into(), ..up.clone() })
}
