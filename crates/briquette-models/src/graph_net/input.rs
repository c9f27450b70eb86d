//! The input of a checkpoint's network: texts or images.

use super::blank::{EXAMPLE, max_tokens};
use super::headers::{GraphHeaders, config_of};
use crate::Input;
use crate::config::Folder;
use crate::data::ImageInput;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::Checkpoint;
use briquette_graph::op::Composite;
use briquette_graph::{Config, Family, Graph, InputSource, Op, Operand};

/// Default length of a text in tokens, as usual for perplexities.
const USUAL: usize = 1024;

/// Returns the input of a checkpoint's network.
///
/// # Errors
/// - Input: the checkpoint does not fit its family, or has a damaged tokenizer.
/// - Config: the network takes neither text nor images.
pub(crate) fn input(family: &Family, checkpoint: &Checkpoint) -> Result<Input> {
    let (tensors, config) = (GraphHeaders::of(checkpoint), config_of(checkpoint)?);
    found(family, checkpoint, &tensors, &config).map_err(|error| error.at(shown_path(checkpoint.path())))
}

fn found(family: &Family, checkpoint: &Checkpoint, tensors: &GraphHeaders, config: &Config) -> Result<Input> {
    let (folder, headers) = (Folder::of(checkpoint), tensors.headers());
    let graph = family.graph(&headers, config, EXAMPLE)?;
    if let Some(images) = graph.inputs.iter().find(|input| input.source == InputSource::Images) {
        let usual = Config::parse(Some(family.usual_config.as_bytes()))?;
        let pixel_scale = config.number("pixel_scale").or(usual.number("pixel_scale"));
        return image_input(&folder, &images.shape, pixel_scale);
    }
    let vocabulary = vocabulary(&graph).ok_or_else(|| Error::config("the network takes neither text nor images"))?;
    let max_positions = max_tokens(family, &headers, config)?.unwrap_or(usize::MAX);
    Input::text(&folder, vocabulary, max_positions, USUAL)
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

/// The keys of a preprocessor_config.json that matter here.
#[derive(serde::Deserialize)]
struct Preprocessor {
    image_mean: Option<Vec<f32>>,
    image_std: Option<Vec<f32>>,
}

/// Returns the preparation of images: the size of the graph, ImageNet's statistics or those of the processor.
///
/// With `pixel_scale`, pixels are only divided by it.
fn image_input(folder: &Folder, shape: &[usize], pixel_scale: Option<f64>) -> Result<Input> {
    let mut input = ImageInput::of_imagenet(shape[1]);
    if let Some(scale) = pixel_scale {
        if scale.is_nan() || scale <= 0.0 {
            return Err(Error::input("pixel_scale is not above 0; correct it").at("config.json"));
        }
        (input.scale, input.mean, input.std) = (scale as f32, vec![0.0; shape[1]], vec![1.0; shape[1]]);
    }
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
