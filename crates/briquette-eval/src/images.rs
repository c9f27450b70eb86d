//! Runs an image model on some images of a data set in small batches.

use crate::image_items::{images_of, pixels_of};
use crate::outputs::{ItemProgress, OutputRows, to_host};
use crate::samples::{BATCH_SIZE, Samples, no_item};
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::batches::stacked;
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Arch, LoadedModel, Network};
use briquette_nn::load_some;
use burn::tensor::{Device, FloatDType};

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
    let (network, names) = Network::blank(arch, checkpoint, device)?;
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
        return Err(no_item(over.1));
    }
    let n_skipped = chosen.len() - rows.len();
    OutputRows::of(rows, Vec::new(), n_skipped, BATCH_SIZE.min(chosen.len()))
}
