//! The part of a network after its blocks, alone.

use super::{BlockPart, NetworkParts};
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::{Arch, GraphNet};
use briquette_nn::{load_some, round_inputs};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, FloatDType, Tensor};

/// Casts loaded parameters only: casting the others would allocate them first.
struct CastLoaded(FloatDType);

impl ModuleMapper for CastLoaded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_initialized() { param.map(|tensor| tensor.cast(self.0)) } else { param }
    }
}

/// Returns the network of a checkpoint with only the weights after its blocks (a head), in this float type.
///
/// `weights` has them by the names of the checkpoint's tensors. If the flag is true, layers round their inputs as they do on its codes.
///
/// # Errors
/// - Input: the checkpoint does not match the architecture.
/// - Io: a tensor cannot be read.
pub(crate) fn exit_of(
    checkpoint: &Checkpoint,
    arch: Arch,
    (weights, rounds_inputs): (&dyn TensorSource, bool),
    device: &Device,
    compute: FloatDType,
) -> Result<GraphNet> {
    let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
    let parts = NetworkParts::of(&network, &names);
    let is_chosen = |name: &str| parts.needs(BlockPart::Exit, name);
    let network = load_some(network, weights, checkpoint.layout(), &names, &is_chosen)?.map(&mut CastLoaded(compute));
    if rounds_inputs { round_inputs(network, checkpoint, &names) } else { Ok(network) }
}
