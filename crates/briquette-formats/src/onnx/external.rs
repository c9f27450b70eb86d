//! Files beside a model that hold the data of its tensors.

use crate::io::paths::{parent_of, stays_inside};
use crate::{InputFile, contained};
use briquette_core::{Error, Result};
use std::path::Path;

/// Opens a file that a model refers to. It must be in the model's directory.
///
/// # Errors
/// - Input: the path or a link leads out of the directory, or the file is the model itself.
/// - Io: the file is missing or cannot be opened.
pub(super) fn open(model: &InputFile, location: &str) -> Result<InputFile> {
    let relative = plain_name(location);
    if !stays_inside(relative) {
        let message = format!("its external data is in {location:?}, expected a file in the model's directory");
        return Err(Error::input(message));
    }
    let file = contained::open(&parent_of(model.path()), Path::new(relative))?;
    let (own, other) = (model.identity(), file.identity());
    match (own.dev, own.ino) == (other.dev, other.ino) {
        true => Err(Error::input(format!("its external data is in {location:?}, which is the model itself"))),
        false => Ok(file),
    }
}

/// Returns the path without a leading `./`.
pub(super) fn plain_name(location: &str) -> &str {
    location.strip_prefix("./").unwrap_or(location)
}
