//! Reads evaluation data: text, images and arrays.

mod array_files;
pub mod array_images;
pub mod arrays;
mod file_size;
pub mod image_folder;
pub mod image_input;
pub mod jsonl;
pub mod lines;
mod npy;
mod pairs;
mod scale;
mod settings;
pub mod sound;
mod spec;
mod tiles;

pub use array_images::{ArrayImages, Split};
pub use arrays::Array;
pub use image_folder::ImageFolder;
pub use image_input::{ImageInput, ScaleFilter};
pub use lines::{Sentences, TextItem, TextLabel};
pub use pairs::{PairSource, Pairs};
pub use sound::SoundInput;
pub use spec::{Data, DataSpec, Images, Normalize};
pub use tiles::ImageTiles;

use briquette_core::memory::available_bytes;
use briquette_core::{Error, Result};
use std::path::Path;

/// Reads a whole text file without its byte order mark.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = read_bytes(path)?;
    let text = String::from_utf8(bytes).map_err(|source| {
        let at = source.utf8_error().valid_up_to();
        Error::input(format!("found invalid UTF-8 at byte {at}, expected text; convert the file")).at(path.display())
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_string(),
        None => text,
    })
}

/// Reads a file of prose: neither JSON nor binary data that happens to be UTF-8.
///
/// # Errors
/// Input: the file is something else. See [`read_text`] for other errors.
pub(crate) fn read_prose(path: &Path) -> Result<String> {
    let text = read_text(path)?;
    let other = match text.find('\0') {
        Some(at) => Some(format!("a NUL at byte {at}")),
        None => is_json(&text).then(|| "a JSON document".to_string()),
    };
    match other {
        Some(found) => {
            let message = format!("found {found}, expected text, or .jsonl with {{\"text\": ...}} in each line");
            Err(Error::input(format!("{message}; give a text file")).at(path.display()))
        }
        None => Ok(text),
    }
}

/// Returns whether the whole text is a JSON list or object.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Reads a whole file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let file = briquette_formats::InputFile::open(path)?;
    // A sparse file may be larger than memory without using disk space.
    if let Some(given) = available_bytes().filter(|given| file.len() > *given) {
        let message =
            format!("it has {} bytes, but only {given} bytes of memory are available; use fewer items", file.len());
        return Err(Error::io("cannot read", path, std::io::Error::other(message)));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the error for empty data.
pub(crate) fn empty(path: &Path, what: &str) -> Error {
    Error::input(format!("found no {what}; nothing to evaluate")).at(path.display())
}

/// Returns the error for a class that the model does not have.
pub(crate) fn out_of_range(what: &str, n_classes: usize) -> Error {
    let message = format!("{what} is out of range, the model has {n_classes} classes, 0 to {}", n_classes.max(1) - 1);
    Error::input(format!("{message}; use data of this model"))
}
