//! Linear layers that a checkpoint stores as two factors.

use crate::GraphNet;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::NameMap;
use std::collections::BTreeMap;

/// Converts layers to low rank if the checkpoint has `X.down.weight`, `[rank, in]`, next to `X.weight`, `[out,
/// rank]`.
///
/// Loading checks the shapes.
pub(crate) fn make_room(network: &mut GraphNet, checkpoint: &Checkpoint, names: &NameMap) {
    let factors = checkpoint.tensors().iter().filter(|info| info.name.ends_with(".down.weight"));
    let sizes: BTreeMap<&str, usize> = factors.map(|info| (info.name.as_str(), info.n_elements())).collect();
    if sizes.is_empty() {
        return;
    }
    for (path, linear) in network.linears_mut() {
        let Some(n_elements) = sizes.get(names.renamed(&format!("{path}.down.weight")).as_str()) else { continue };
        let [d_input, _] = linear.dims();
        if *n_elements > 0 && n_elements.is_multiple_of(d_input) {
            *linear = linear.of_rank(n_elements / d_input);
        }
    }
}
