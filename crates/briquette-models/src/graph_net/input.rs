//! The input of a checkpoint's network: texts or images.

use super::blank::{EXAMPLE, max_tokens};
use crate::Input;
use crate::config::Folder;
use crate::data::ImageInput;
use crate::input::Longest;
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_graph::op::Composite;
use briquette_graph::{Graph, InputSource, Op, Operand, graph_of};

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
    if let Some(images) = graph.inputs.iter().find(|input| input.source == InputSource::Images) {
        return image_input(&folder, &images.shape);
    }
    let vocabulary = vocabulary(&graph).ok_or_else(|| Error::config("the network takes neither text nor images"))?;
    let max_positions = max_tokens(checkpoint)?.unwrap_or(usize::MAX);
    let longest = Longest { max_positions, window: None };
    Input::text(&folder, vocabulary, longest, max_positions.min(USUAL))
}

/// Returns the rows of the table that token ids look up.
fn vocabulary(graph: &Graph) -> Option<usize> {
    let ids = graph.inputs.iter().find(|input| input.source == InputSource::TokenIds)?.value;
    let is_lookup = |node: &&briquette_graph::Node| {
        node.op == Op::Composite(Composite::Embedding) && node.inputs.get(1) == Some(&Operand::Value(ids))
    };
    match graph.nodes.iter().find(is_lookup)?.inputs[0] {
        Operand::Weight(table) => graph.weights[table.0].shape.0.first().copied(),
        Operand::Value(_) => None,
    }
}

/// The keys of a preprocessor_config.json that matter here.
#[derive(serde::Deserialize)]
struct Preprocessor {
    image_mean: Option<Vec<f32>>,
    image_std: Option<Vec<f32>>,
}

/// Returns the preparation of images: the size of the graph, ImageNet's statistics or those of the processor.
fn image_input(folder: &Folder, shape: &[usize]) -> Result<Input> {
    let mut input = ImageInput::of_imagenet(shape[1]);
    let processor: Option<Preprocessor> = folder.read("preprocessor_config.json")?;
    if let Some(Preprocessor { image_mean, image_std }) = processor {
        input.mean = image_mean.unwrap_or(input.mean);
        input.std = image_std.unwrap_or(input.std);
    }
    let crop = [shape[2], shape[3]];
    if crop != EXAMPLE.image {
        (input.crop, input.resize, input.is_fixed) = (crop, None, true);
    }
    input.check()?;
    Ok(Input::Images(input))
}
