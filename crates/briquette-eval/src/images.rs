//! Runs an image model on some images of a data set in small batches.

use crate::outputs::{ItemProgress, OutputRows, to_host};
use crate::samples::{BATCH_SIZE, Samples};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec, ImageInput, Images};
use briquette_models::{Arch, GraphNet, Input, LoadedModel};
use briquette_nn::load_some;
use burn::tensor::{Device, FloatDType};
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

/// Returns the logits of some images, by the model of a checkpoint with the weights of a source.
///
/// # Errors
/// - Config: the data is of another kind.
/// - Input: no image can be used.
/// - Refused: logits are not finite.
/// - Io: a tensor cannot be read.
pub(crate) fn classify_with(
    checkpoint: &Checkpoint,
    (arch, weights): (Arch, &dyn TensorSource),
    device: &Device,
    over: (&Data, &DataSpec),
    samples: Samples,
    progress: ItemProgress,
) -> Result<OutputRows> {
    let (network, names) = GraphNet::blank(arch, checkpoint, device)?;
    let network = load_some(network, weights, checkpoint.layout(), &names, &|_| true)?;
    let model = LoadedModel { arch, network, input: arch.input(checkpoint)?, names, compute: FloatDType::F32 };
    let (images, input) = images_of(arch, &model.input, over)?;
    let (chosen, mut rows, mut n_seen) = (samples.of(images.len())?, Vec::new(), 0);
    for batch in chosen.chunks(BATCH_SIZE) {
        let (places, pixels) = pixels_of(images, batch, &input, over.1.strict)?;
        if !pixels.is_empty() {
            let scores = to_host(model.classify(stacked(&pixels, images.extents(&input)?, device)))?;
            let width = scores.values.len() / places.len();
            rows.extend(places.into_iter().zip(scores.values.chunks(width.max(1)).map(<[f32]>::to_vec)));
        }
        n_seen += batch.len();
        progress(n_seen, chosen.len())?;
    }
    if rows.is_empty() {
        return Err(Error::input("no item in it can be used; the model received no input").at(over.1.path.display()));
    }
    let n_skipped = chosen.len() - rows.len();
    OutputRows::of(rows, Vec::new(), n_skipped, BATCH_SIZE.min(chosen.len()))
}
