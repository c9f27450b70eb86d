//! The network of a model without its weights, for outputs that hold the weights in another format.

use super::copy::NetworkCopy;
use super::skeleton::Skeleton;
use crate::{InputFile, TensorInfo};
use briquette_core::Result;

/// The name of the network in an output directory.
pub const NETWORK_FILE: &str = "network.onnx";
/// Floats up to this number may be settings of a node, such as the factors of `Resize`, and stay.
const MAX_SETTINGS: usize = 64;

/// Copies a model without the elements of its weights. Everything else is copied byte for byte; other elements of external
/// files move into the copy. `None` if the copy would have more than [`MAX_NETWORK_BYTES`](super::MAX_NETWORK_BYTES).
///
/// # Errors
/// See [`Skeleton::read`].
pub fn network_of(file: &InputFile) -> Result<Option<Vec<u8>>> {
    let skeleton = Skeleton::read(InputFile::open(file.path())?)?;
    let is_left_out = |info: &&TensorInfo| info.dtype.is_weight() && info.n_elements() > MAX_SETTINGS;
    let infos = skeleton.tensors.iter().map(|(info, ..)| info).filter(is_left_out);
    let mut copy = NetworkCopy::without(file, infos.map(|info| info.name.to_string()).collect());
    match copy.whole() {
        Err(_) if copy.is_full() => Ok(None),
        made => made.map(Some),
    }
}
