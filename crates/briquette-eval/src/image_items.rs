//! The images of a data set, as a model takes them.

use briquette_core::{Error, Result};
use briquette_models::data::{Data, DataSpec, ImageInput, Images};
use briquette_models::{Arch, Input};
use std::sync::Arc;

/// Returns the images of the data, and how the model takes them.
///
/// # Errors
/// Config: the model takes no images, or the data has none.
pub(crate) fn images_of<'a>(
    arch: Arch,
    input: &Input,
    (data, spec): (&'a Data, &DataSpec),
) -> Result<(&'a Arc<Images>, ImageInput)> {
    match (data, input) {
        (Data::Images(images), Input::Images(input)) => Ok((images, spec.image_input(input)?)),
        _ => {
            let message = format!("{arch} cannot run on this kind of data; use data for its task");
            Err(Error::config(message).at(spec.path.display()))
        }
    }
}

/// Returns the images of a batch that decode, and their indices.
pub(crate) fn pixels_of(
    images: &Images,
    batch: &[usize],
    input: &ImageInput,
    is_strict: bool,
) -> Result<(Vec<usize>, Vec<Vec<f32>>)> {
    let (mut places, mut pixels) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    for &at in batch {
        match images.pixels(at, input) {
            Ok(found) => {
                places.push(at);
                pixels.push(found);
            }
            Err(error) if is_strict => return Err(error),
            Err(_) => {}
        }
    }
    Ok((places, pixels))
}
