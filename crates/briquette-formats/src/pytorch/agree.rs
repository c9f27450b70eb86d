//! Compares the tensors of an archive with those that a second reader, the crate `pytorch-reader`, finds.
//!
//! A pickle that two programs read differently could hide something from one of them.

use crate::io::{InputFile, TensorInfo};
use crate::pytorch::pickle::{Flattened, Node, Pickle};
use briquette_core::{DType, Error, Result};
use pytorch_reader::{PytorchReader, Tensor};

/// Opens the file with the second reader, which must find the same tensors in the model.
///
/// Archives with float8 are skipped, because the second reader does not support them.
///
/// # Errors
/// Input: the readers disagree, or the second reader refuses the file.
pub(crate) fn agree<'a>(
    file: &InputFile,
    pickle: &Pickle,
    found: &Flattened,
    tensors: impl Iterator<Item = &'a TensorInfo>,
) -> Result<()> {
    if pickle.nodes().iter().any(|node| matches!(node, Node::Tensor(view) if is_float8(view.dtype))) {
        return Ok(());
    }
    let opened = PytorchReader::new(file.path());
    let opened = opened.map_err(|error| Error::input(format!("{error}; the archive is damaged or not supported")))?;
    // The second reader opened the path again, so check that it is the same file.
    file.check_unchanged()?;
    let mut others = opened.into_tensors();
    let differs = |name: &str| {
        Error::input("two readers disagree on its pickle; save it again with torch.save")
            .at(format_args!("tensor {name:?}"))
    };
    let below = |name: &str| if found.path.is_empty() { name.to_string() } else { format!("{}.{name}", found.path) };
    for info in tensors {
        let is_same = |other: &Tensor| {
            other.shape() == info.shape.0.as_slice() && format!("{:?}", other.dtype()) == format!("{:?}", info.dtype)
        };
        others.remove(&below(&info.name)).filter(is_same).ok_or_else(|| differs(&info.name))?;
    }
    let is_left = |name: &str| {
        let is_below = |key: &str| name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        !found.path.is_empty() && !is_below(&found.path) || found.left_keys.iter().any(|key| is_below(key))
    };
    match others.keys().filter(|name| !is_left(name)).min() {
        Some(name) => Err(differs(name)),
        None => Ok(()),
    }
}

fn is_float8(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3Fnuz | DType::F8E5M2Fnuz | DType::F8E8M0)
}
