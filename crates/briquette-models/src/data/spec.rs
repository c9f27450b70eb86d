//! What to evaluate on, as a recipe says it, and the data that comes of it.

use super::{ArrayImages, ImageFolder, ImageInput, ImageTiles, Sentences, Split, empty, read_prose};
use crate::ModelTask;
use briquette_core::{Error, Result};
use briquette_formats::presence;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to evaluate on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSpec {
    /// Text lines or `.jsonl` for encoders; a text file for decoders; a folder of classes or arrays for classifiers.
    pub path: PathBuf,
    /// Labels in a file of their own, where `path` is an array; without it they are looked for in that.
    pub labels: Option<PathBuf>,
    /// Tokens that texts are cut at; the model's own limit where it is absent.
    pub max_length: Option<usize>,
    /// Tokens from the beginning of one window of a decoder's text to the next; those of a window where it is absent.
    pub stride: Option<usize>,
    /// What the shorter side of an image is scaled to.
    pub size: Option<usize>,
    /// Height and width cut from the middle of an image.
    pub crop: Option<[usize; 2]>,
    /// Images are cut into tiles of at most this height and width, whose outputs are averaged, instead of being cropped;
    /// they are scaled only where `size` says so.
    pub tile: Option<usize>,
    /// What each channel is shifted and divided by, after bytes were scaled to 0..1.
    pub normalize: Option<Normalize>,
    /// Whether an image that does not decode is fatal, not skipped and counted.
    pub strict: bool,
    /// Which arrays of a file that has several.
    pub split: Split,
}

/// The statistics of channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Subtracted.
    pub mean: Vec<f32>,
    /// Divided by.
    pub std: Vec<f32>,
}

/// Data, open and known not to be empty.
#[derive(Debug, Clone)]
pub enum Data {
    /// For encoders.
    Sentences(Arc<Sentences>),
    /// For classifiers.
    Images(Arc<Images>),
    /// For decoders.
    Document(Arc<str>),
}

/// Images of either source.
#[derive(Debug, Clone)]
pub enum Images {
    /// One folder per class.
    Folder(ImageFolder),
    /// An array.
    Array(ArrayImages),
}

impl DataSpec {
    /// Opens the data as a model of this task takes it. Images are decoded later, one at a time.
    ///
    /// # Errors
    /// Input where there is nothing in it or it is damaged; Config where it is of another kind, or a setting would do
    /// nothing to it; Io.
    pub fn open(&self, task: ModelTask) -> Result<Data> {
        self.check_settings(task)?;
        let path = &self.path;
        let is_folder = presence::is_directory(path)?;
        match (task, is_folder) {
            (ModelTask::Classifier, true) => Ok(Data::Images(Arc::new(Images::Folder(ImageFolder::open(path)?)))),
            (ModelTask::Classifier, false) => {
                let images = ArrayImages::open(path, self.labels.as_deref(), self.split)?;
                if self.normalize.is_some() && images.is_floats() {
                    let message = "it is for images of bytes, and the data is an array of floats, which are taken as \
                                   they are; leave it out";
                    return Err(Error::config(message).at("data.normalize"));
                }
                Ok(Data::Images(Arc::new(Images::Array(images))))
            }
            (_, true) => {
                let message = "found a directory, expected a file of text; name one";
                Err(Error::config(message).at(path.display()))
            }
            (ModelTask::Encoder, false) if is_jsonl(path) => {
                Ok(Data::Sentences(Arc::new(Sentences::read_jsonl(path)?)))
            }
            (ModelTask::Encoder, false) => Ok(Data::Sentences(Arc::new(Sentences::read_lines(path)?))),
            (ModelTask::Decoder, false) => {
                let text =
                    if is_jsonl(path) { Sentences::read_jsonl(path)?.texts.join("\n\n") } else { read_prose(path)? };
                if text.trim().is_empty() { Err(empty(path, "text")) } else { Ok(Data::Document(text.into())) }
            }
        }
    }

    /// `input` with what this says otherwise.
    ///
    /// # Errors
    /// Config where sizes and statistics do not go together.
    pub fn image_input(&self, input: &ImageInput) -> Result<ImageInput> {
        let mut input = input.clone();
        if self.tile.is_some() {
            if self.crop.is_some() {
                return Err(Error::config("found both tile and crop, expected one; tiles cover the whole image"));
            }
            (input.tile, input.resize) = (self.tile, None);
        }
        if let Some(size) = self.size {
            input.resize = Some(size);
            if self.crop.is_none() && !input.is_fixed {
                input.crop = [size.min(input.crop[0]), size.min(input.crop[1])];
            }
        }
        input.crop = self.crop.unwrap_or(input.crop);
        if let Some(Normalize { mean, std }) = &self.normalize {
            (input.mean, input.std) = (mean.clone(), std.clone());
        }
        input.check()?;
        Ok(input)
    }
}

fn is_jsonl(path: &Path) -> bool {
    let is = |name: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(name));
    is("jsonl") || is("ndjson")
}

impl Images {
    /// Images, at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Self::Folder(images) => images.len(),
            Self::Array(images) => images.len(),
        }
    }

    /// The class of an image, where it is known.
    pub fn label(&self, index: usize) -> Option<usize> {
        match self {
            Self::Folder(images) => Some(images.label(index)),
            Self::Array(images) => images.labels().map(|labels| labels[index]),
        }
    }

    /// Where they come from.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(images) => images.path(),
            Self::Array(images) => images.path(),
        }
    }

    /// Whether every label is one of a model's classes.
    ///
    /// # Errors
    /// Input, naming the first that is not and where it comes from.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        match self {
            Self::Folder(images) => images.check_labels(n_classes),
            Self::Array(images) => images.check_labels(n_classes),
        }
    }

    /// The values of an image as the network takes them.
    ///
    /// # Errors
    /// Input where it does not decode or fit; Io.
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        match self {
            Self::Folder(images) => images.pixels(index, input),
            Self::Array(images) => images.pixels(index, input),
        }
    }

    /// An image in tiles of at most `tile` by `tile`.
    ///
    /// # Errors
    /// As [`Images::pixels`]; Config where images are an array, which is of one size already.
    pub fn tiles(&self, index: usize, input: &ImageInput, tile: usize) -> Result<ImageTiles> {
        match self {
            Self::Folder(images) => images.tiles(index, input, tile),
            Self::Array(_) => Err(Error::config("tile: found an array, expected a folder of images; leave it out")),
        }
    }

    /// Channels, height and width of every image.
    ///
    /// # Errors
    /// Input where an array holds no images for the network.
    pub fn extents(&self, input: &ImageInput) -> Result<[usize; 3]> {
        match self {
            Self::Folder(_) => Ok([input.channels, input.crop[0], input.crop[1]]),
            Self::Array(images) => images.layout(input).map(|(extents, _)| extents),
        }
    }
}
