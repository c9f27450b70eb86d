//! Linear layers that a checkpoint stores as two factors.

use crate::layers::Linear;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::NameMap;
use std::collections::BTreeMap;

/// A network that lists its linear layers.
pub(crate) trait Linears {
    /// Returns every linear layer with its path.
    fn linears(&mut self) -> Vec<(String, &mut Linear)>;
}

/// Converts layers to low rank if the checkpoint has `X.down.weight`, `[rank, in]`, next to `X.weight`, `[out,
/// rank]`.
///
/// Loading checks the shapes.
pub(crate) fn make_room<M: Linears>(network: &mut M, checkpoint: &Checkpoint, names: &NameMap) {
    let sizes: BTreeMap<&str, usize> =
        checkpoint.tensors().iter().map(|info| (info.name.as_str(), info.n_elements())).collect();
    for (path, linear) in network.linears() {
        let Some(n_elements) = sizes.get(names.renamed(&format!("{path}.down.weight")).as_str()) else { continue };
        let [d_input, _] = linear.dims();
        if *n_elements > 0 && n_elements.is_multiple_of(d_input) {
            *linear = linear.of_rank(n_elements / d_input);
        }
    }
}

/// Prefixes the paths of a layer's linear layers.
pub(crate) fn below<'a>(
    name: impl std::fmt::Display,
    linears: impl IntoIterator<Item = (String, &'a mut Linear)>,
) -> impl Iterator<Item = (String, &'a mut Linear)> {
    linears.into_iter().map(move |(path, linear)| (format!("{name}.{path}"), linear))
}
