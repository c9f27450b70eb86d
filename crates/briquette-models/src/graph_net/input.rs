//! The input of a checkpoint's network: texts or images.

use super::example::{EXAMPLE, max_tokens};
use super::headers::{GraphHeaders, config_of};
use super::preprocessor::{PREPROCESSOR, PROCESSOR, Preprocessor, SoundPreprocessor};
use crate::Input;
use crate::config::Folder;
use crate::data::{ImageInput, ScaleFilter, SoundInput};
use crate::text::Pooling;
use briquette_core::{Error, Result, shown_path};
use briquette_formats::Checkpoint;
use briquette_graph::op::Composite;
use briquette_graph::{Config, Extents, Family, Graph, InputSource, Op, Operand, text_classes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Default length of a text in tokens, as usual for perplexities.
const USUAL: usize = 1024;

/// Returns the input of a checkpoint's network.
///
/// # Errors
/// - Input: the checkpoint does not fit its family, or has a damaged tokenizer.
/// - Config: the network takes neither text nor images.
pub(crate) fn input(family: &Family, checkpoint: &Checkpoint) -> Result<Input> {
    let (tensors, config) = (GraphHeaders::of(checkpoint), config_of(checkpoint)?);
    let (headers, usual) = (tensors.headers(), Config::parse(Some(family.usual_config.as_bytes()))?);
    let max_positions = || Ok(max_tokens(family, &headers, &config)?.unwrap_or(usize::MAX));
    let described = InputOf {
        build: &|extents| family.graph(&headers, &config, extents),
        folder: Folder::of(checkpoint),
        config: &config,
        usual: &usual,
        max_positions: &max_positions,
    };
    described.input().map_err(|error| error.at(shown_path(checkpoint.path())))
}

/// A network whose input is described.
pub(super) struct InputOf<'a> {
    /// Builds the graph for an example.
    pub(super) build: &'a dyn Fn(Extents) -> Result<Graph>,
    pub(super) folder: Folder,
    pub(super) config: &'a Config,
    /// The usual value of each key that may be absent.
    pub(super) usual: &'a Config,
    /// Returns the number of positions.
    pub(super) max_positions: &'a dyn Fn() -> Result<usize>,
}

impl InputOf<'_> {
    fn graph(&self, extents: Extents) -> Result<Graph> {
        (self.build)(extents)
    }

    pub(super) fn input(&self) -> Result<Input> {
        let graph = self.graph(EXAMPLE)?;
        if let Some(shape) = image_shape(&graph) {
            return self.image_input(shape);
        }
        let message = "the network takes neither text nor images";
        let vocabulary = vocabulary(&graph).ok_or_else(|| Error::config(message))?;
        let max_positions = (self.max_positions)()?;
        if graph.inputs.iter().any(|input| input.source == InputSource::TargetIds) {
            let sound = sound_shape(&graph).map(|[mels, frames]| self.sound_input(mels, frames)).transpose()?;
            return Input::pair(&self.folder, vocabulary, max_positions, USUAL, sound);
        }
        let has_classes = text_classes(&graph, &graph.lower()?.shapes).is_some();
        let classes = (self.config.class_names(), has_classes);
        let input = Input::text(&self.folder, vocabulary, max_positions, USUAL, classes)?;
        self.check_dense(&graph, &input)?;
        Ok(input)
    }

    /// Refuses a Dense module that does not take the network's hidden states.
    fn check_dense(&self, graph: &Graph, input: &Input) -> Result<()> {
        let Input::Text { pooling: Pooling { dense: Some(dense), .. }, .. } = input else { return Ok(()) };
        let shapes = graph.lower()?.shapes;
        let width = graph.outputs.first().and_then(|output| shapes[output.0].last()).copied().unwrap_or_default();
        let [expected, _] = dense.widths();
        if width == expected {
            return Ok(());
        }
        let message = format!("the Dense module takes {expected} numbers, the network gives {width}");
        Err(Error::input(message).at(self.folder.file("modules.json").display()))
    }

    /// Returns the preparation of images: by the file of the model, or else as torchvision's classifiers do.
    ///
    /// With `pixel_scale`, pixels are only divided by it.
    fn image_input(&self, shape: &[usize]) -> Result<Input> {
        let other = [EXAMPLE.image[0] + 32, EXAMPLE.image[1] + 64];
        let of_other = self.graph(Extents { image: other, ..EXAMPLE }).ok();
        let is_fixed = of_other.as_ref().and_then(image_shape) == Some(shape);
        let mut input = ImageInput { is_fixed, ..ImageInput::of_imagenet(shape[1]) };
        if is_fixed {
            (input.crop, input.resize) = ([shape[2], shape[3]], None);
        } else {
            input.least_side = self.least_side();
        }
        let scale = self.config.number("pixel_scale").or(self.usual.number("pixel_scale"));
        let has_scale = scale.is_some();
        if let Some(scale) = scale {
            if scale.is_nan() || scale <= 0.0 {
                return Err(Error::input("pixel_scale is not above 0; correct it").at("config.json"));
            }
            (input.scale, input.mean, input.std) = (scale as f32, vec![0.0; shape[1]], vec![1.0; shape[1]]);
        }
        let file = self.settings::<Preprocessor>("image_processor")?;
        if let Some(model_type) = self.folder.model_type()?.filter(|_| file.is_some() || !has_scale) {
            input.filter = usual_filter(&model_type);
            if let Some([mean, std]) = usual_normalization(&model_type, input.channels) {
                (input.mean, input.std) = (mean, std);
            }
        }
        if let Some((file, path)) = file {
            file.apply(&mut input).map_err(|error| error.at(path.display()))?;
        }
        input.check()?;
        Ok(Input::Images(input))
    }

    /// Returns how sounds are read: by the file of the model, or else as Whisper does.
    fn sound_input(&self, mels: usize, frames: usize) -> Result<SoundInput> {
        let usual = SoundInput::new(mels, frames);
        let found = self.settings::<SoundPreprocessor>("feature_extractor")?;
        let Some((file, path)) = found else { return Ok(usual) };
        let found = SoundInput {
            n_mels: file.feature_size.unwrap_or(mels),
            n_fft: file.n_fft.unwrap_or(usual.n_fft),
            hop: file.hop_length.unwrap_or(usual.hop),
            rate: file.sampling_rate.unwrap_or(usual.rate),
            ..usual
        };
        let is_sound = found.n_mels == mels
            && found.n_fft.is_multiple_of(4)
            && (4..=1 << 16).contains(&found.n_fft)
            && (1..=1 << 16).contains(&found.hop)
            && found.rate > 0;
        if is_sound {
            return Ok(found);
        }
        let message = format!(
            "found {} bands, frames of {} samples every {} at {} Hz, expected {mels} bands and frames of a multiple of 4",
            found.n_mels, found.n_fft, found.hop, found.rate
        );
        Err(Error::input(format!("{message}; correct it")).at(path.display()))
    }

    /// Returns how a model prepares its inputs, and the file that says so: one of its own, or a part of the processor's.
    fn settings<T: DeserializeOwned>(&self, part: &str) -> Result<Option<(T, PathBuf)>> {
        if let Some(own) = self.folder.read::<T>(PREPROCESSOR)? {
            return Ok(Some((own, self.folder.file(PREPROCESSOR))));
        }
        let path = self.folder.file(PROCESSOR);
        let parts: Map<String, Value> = self.folder.read(PROCESSOR)?.unwrap_or_default();
        let Some(own) = parts.get(part).filter(|own| own.is_object()) else { return Ok(None) };
        let own = serde_json::from_value(own.clone());
        own.map(|own| Some((own, path.clone())))
            .map_err(|error| Error::input(format!("{part}: {error}")).at(path.display()))
    }

    /// Returns the smallest side of an image that every layer of the network accepts.
    fn least_side(&self) -> usize {
        let fits = |side: usize| self.graph(Extents { image: [side; 2], ..EXAMPLE }).is_ok();
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
}

/// Returns the filter of the processors of transformers without settings.
fn usual_filter(model_type: &str) -> ScaleFilter {
    match model_type {
        "clip" | "clip_vision_model" | "convnext" | "deit" | "dinov2" | "siglip" | "siglip_vision_model" => {
            ScaleFilter::Bicubic
        }
        _ => ScaleFilter::Bilinear,
    }
}

/// Returns the mean and deviation of the processors of transformers without settings, where they are not those of ImageNet.
fn usual_normalization(model_type: &str, channels: usize) -> Option<[Vec<f32>; 2]> {
    const CLIP: [[f32; 3]; 2] = [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]];
    match model_type {
        // Bytes become -1..1.
        "vit" | "siglip" | "siglip_vision_model" | "mobilenet_v2" => Some([0, 1].map(|_| vec![0.5; channels])),
        "clip" | "clip_vision_model" if channels == 3 => Some(CLIP.map(Vec::from)),
        _ => None,
    }
}

/// Returns `[batch, channels, height, width]` of the images that a graph takes.
pub(super) fn image_shape(graph: &Graph) -> Option<&[usize]> {
    let images = graph.inputs.iter().find(|input| input.source == InputSource::Images)?;
    Some(images.shape.as_slice())
}

/// Returns the bands and frames of the sounds that a graph takes.
fn sound_shape(graph: &Graph) -> Option<[usize; 2]> {
    let sounds = graph.inputs.iter().find(|input| input.source == InputSource::SoundFeatures)?;
    sounds.shape.get(1..)?.try_into().ok()
}

/// Returns the rows of the table that token ids look up.
pub(super) fn vocabulary(graph: &Graph) -> Option<usize> {
    let ids = |source| graph.inputs.iter().find(|input| input.source == source);
    let ids = ids(InputSource::TokenIds).or_else(|| ids(InputSource::TargetIds))?.value;
    let is_lookup = |node: &&briquette_graph::Node| {
        node.op == Op::Composite(Composite::Embedding) && node.inputs.get(1) == Some(&Operand::Value(ids))
    };
    match graph.nodes.iter().find(is_lookup)?.inputs[0] {
        Operand::Weight(table) => graph.weights[table.0].shape.0.first().copied(),
        Operand::Value(_) => None,
    }
}
