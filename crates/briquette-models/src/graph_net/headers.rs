//! The headers of a checkpoint, as of a network whose layers have full rank.

use briquette_core::{Result, Shape};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource, WeightLayout, model_config};
use briquette_graph::{Config, Headers};
use std::collections::BTreeMap;

/// The tensors that a graph is built from.
pub(crate) struct GraphHeaders {
    tensors: Vec<TensorInfo>,
    layout: Option<WeightLayout>,
}

impl GraphHeaders {
    /// Reads the headers. Two factors `X.down.weight` and `X.weight` become the weight that they are factors of.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let (tensors, layout) = (checkpoint.tensors(), checkpoint.layout());
        let factors: BTreeMap<&str, &TensorInfo> =
            tensors.iter().filter_map(|info| Some((info.name.strip_suffix(".down.weight")?, info))).collect();
        let named = |name: &str| tensors.iter().any(|info| info.name.strip_suffix(".weight") == Some(name));
        let whole = |info: &TensorInfo| match info.name.strip_suffix(".down.weight") {
            Some(path) if named(path) => None,
            _ => {
                let down = info.name.strip_suffix(".weight").and_then(|path| factors.get(path));
                Some(down.and_then(|down| product(info, down, layout)).unwrap_or_else(|| info.clone()))
            }
        };
        Self { tensors: tensors.iter().filter_map(whole).collect(), layout }
    }

    /// Returns the same tensors in the other layout of matrices.
    pub(crate) fn turned(&self) -> Self {
        let layout = match self.layout {
            Some(WeightLayout::Burn) => WeightLayout::Torch,
            _ => WeightLayout::Burn,
        };
        Self { tensors: self.tensors.clone(), layout: Some(layout) }
    }

    pub(crate) fn headers(&self) -> Headers<'_> {
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

/// Reads config.json; an absent file has no keys.
pub(super) fn config_of(checkpoint: &Checkpoint) -> Result<Config> {
    Config::parse(model_config::read(checkpoint)?.as_deref())
}
