//! The input of a checkpoint's network: texts or images.

use super::blank::{EXAMPLE, max_tokens};
use super::preprocessor::{PREPROCESSOR, Preprocessor};
use crate::Input;
use crate::config::Folder;
use crate::data::ImageInput;
use crate::input::Longest;
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_graph::op::Composite;
use briquette_graph::{Extents, Graph, InputSource, Op, Operand, graph_of};

/// Default length of a text in tokens, as usual for perplexities.
const USUAL: usize = 1024;

/// Returns the input of a checkpoint's network.
///
/// # Errors
/// - Input: the checkpoint does not fit its family, or has a damaged tokenizer.
/// - Config: the network takes neither text nor images.
pub(crate) fn input(checkpoint: &Checkpoint) -> Result<Input> {
    let folder = Folder::of(checkpoint);
    let graph = graph_of(checkpoint, EXAMPLE)?.ok_or_else(|| Error::config("no family knows the model"))?;
    if let Some(shape) = image_shape(&graph) {
        return image_input(checkpoint, &folder, shape);
    }
    let vocabulary = vocabulary(&graph).ok_or_else(|| Error::config("the network takes neither text nor images"))?;
    let max_positions = max_tokens(checkpoint)?.unwrap_or(usize::MAX);
    let longest = Longest { max_positions, window: None };
    Input::text(&folder, vocabulary, longest, max_positions.min(USUAL))
}

/// Returns `[batch, channels, height, width]` of the images that a graph takes.
fn image_shape(graph: &Graph) -> Option<&[usize]> {
    let images = graph.inputs.iter().find(|input| input.source == InputSource::Images)?;
    Some(images.shape.as_slice())
}

/// Returns the preparation of images: by the file of the model, or else as torchvision's classifiers do.
fn image_input(checkpoint: &Checkpoint, folder: &Folder, shape: &[usize]) -> Result<Input> {
    let other = [EXAMPLE.image[0] + 32, EXAMPLE.image[1] + 64];
    let of_other = graph_of(checkpoint, Extents { image: other, ..EXAMPLE })?;
    let is_fixed = of_other.as_ref().and_then(image_shape) == Some(shape);
    let mut input = ImageInput { is_fixed, ..ImageInput::of_imagenet(shape[1]) };
    if is_fixed {
        (input.crop, input.resize) = ([shape[2], shape[3]], None);
    } else {
        input.least_side = least_side(checkpoint);
    }
    match folder.read::<Preprocessor>(PREPROCESSOR)? {
        Some(file) => file.apply(&mut input).map_err(|error| error.at(folder.file(PREPROCESSOR).display()))?,
        // The processor of ViT without settings maps bytes to -1..1.
        None if folder.model_type()?.as_deref() == Some("vit") => {
            (input.mean, input.std) = (vec![0.5; input.channels], vec![0.5; input.channels]);
        }
        None => {}
    }
    input.check()?;
    Ok(Input::Images(input))
}

/// Returns the smallest side of an image that every layer of the network accepts.
fn least_side(checkpoint: &Checkpoint) -> usize {
    let fits = |side: usize| graph_of(checkpoint, Extents { image: [side; 2], ..EXAMPLE }).is_ok();
    if fits(1) {
        return 1;
    }
    // `too_small` does not fit, and `least` does.
    let (mut too_small, mut least) = (1, EXAMPLE.image[0]);
    while least - too_small > 1 {
        let side = too_small.midpoint(least);
        if fits(side) { least = side } else { too_small = side }
    }
    least
}

/// Returns the rows of the table that token ids look up.
pub(super) fn vocabulary(graph: &Graph) -> Option<usize> {
    let ids = graph.inputs.iter().find(|input| input.source == InputSource::TokenIds)?.value;
    let is_lookup = |node: &&briquette_graph::Node| {
        node.op == Op::Composite(Composite::Embedding) && node.inputs.get(1) == Some(&Operand::Value(ids))
    };
    match graph.nodes.iter().find(is_lookup)?.inputs[0] {
        Operand::Weight(table) => graph.weights[table.0].shape.0.first().copied(),
        Operand::Value(_) => None,
    }
}
