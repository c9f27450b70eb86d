//! Linear layers that a checkpoint has as two factors.

use crate::layers::Linear;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::NameMap;
use std::collections::BTreeMap;

/// A network that shows its linear layers.
pub(crate) trait Linears {
    /// Every linear layer, with its path.
    fn linears(&mut self) -> Vec<(String, &mut Linear)>;
}

/// Makes room for factors where the checkpoint has them: `X.down.weight`, `[rank, in]`, beside `X.weight`, `[out, rank]`. Whether
/// they fit is found out where they are loaded.
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

/// Puts a layer's name in front of the paths of what it has.
pub(crate) fn below<'a>(
    name: impl std::fmt::Display,
    linears: impl IntoIterator<Item = (String, &'a mut Linear)>,
) -> impl Iterator<Item = (String, &'a mut Linear)> {
    linears.into_iter().map(move |(path, linear)| (format!("{name}.{path}"), linear))
}
