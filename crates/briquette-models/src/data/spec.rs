//! Evaluation data as a recipe describes it, and the opened data.

use super::{ArrayImages, ImageFolder, ImageInput, ImageTiles, Pairs, Sentences, Split, empty, file_size, read_prose};
use crate::ModelTask;
use briquette_core::memory::MemoryLimit;
use briquette_core::{Error, Remedy, Result, shown_path};
use briquette_formats::presence;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Description of evaluation data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSpec {
    /// Text lines or `.jsonl` for encoders; a text file for decoders; a folder of classes or arrays for classifiers; `.jsonl`
    /// with pairs for encoder-decoders.
    pub path: PathBuf,
    /// File of labels if `path` is an array; by default, labels are read from the same file.
    pub labels: Option<PathBuf>,
    /// Largest number of tokens per text; the model's limit by default.
    pub max_length: Option<usize>,
    /// Tokens between the starts of two windows of a decoder's text; by default the length of a window.
    pub stride: Option<usize>,
    /// Length to which the shorter side of an image is scaled.
    pub size: Option<usize>,
    /// Height and width of the center crop of an image.
    pub crop: Option<[usize; 2]>,
    /// Largest tile side: images are cut into tiles, and the outputs are averaged, instead of cropping. Images
    /// are scaled only if `size` is set.
    pub tile: Option<usize>,
    /// Mean and standard deviation of each channel, after bytes are scaled to 0..1.
    pub normalize: Option<Normalize>,
    /// Whether an image that cannot be decoded is an error; otherwise it is skipped and counted.
    pub strict: bool,
    /// Split to read from a file with several arrays.
    pub split: Split,
}

/// Statistics per channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Mean, which is subtracted.
    pub mean: Vec<f32>,
    /// Standard deviation, the divisor.
    pub std: Vec<f32>,
}

/// Opened data with at least one item.
#[derive(Debug, Clone)]
pub enum Data {
    /// For encoders.
    Sentences(Arc<Sentences>),
    /// For classifiers.
    Images(Arc<Images>),
    /// For decoders.
    Document(Arc<str>),
    /// For encoder-decoders.
    Pairs(Arc<Pairs>),
}

/// Images from a folder or an array.
#[derive(Debug, Clone)]
pub enum Images {
    /// One folder per class.
    Folder(ImageFolder),
    /// An array.
    Array(ArrayImages),
}

impl DataSpec {
    /// Refuses a file that takes more bytes than a memory limit, whatever else is in memory.
    ///
    /// # Errors
    /// - Refused: reading the file would exceed the limit
    /// - Io: the file cannot be read
    pub fn check_size(&self, limit: u64) -> Result<()> {
        let n_bytes = file_size::opening_bytes(&self.path)?;
        if n_bytes <= limit {
            return Ok(());
        }
        let path = shown_path(&self.path);
        let message = format!("cannot read {path}: {n_bytes} more needed, expected at most {limit}; raise the limit");
        Err(Error::refused(message).at("memory.limit"))
    }

    /// Opens the data for a task within a memory limit.
    ///
    /// # Errors
    /// - Refused: reading the file could exceed the limit
    /// - See [`open`](Self::open)
    pub fn open_within(&self, task: ModelTask, limit: Option<MemoryLimit>) -> Result<Data> {
        if let Some(limit) = limit.filter(MemoryLimit::is_of_host) {
            let what = format!("read {}", shown_path(&self.path));
            limit.check_before(&what, file_size::opening_bytes(&self.path)?)?;
        }
        self.open(task)
    }

    /// Opens the data for a task. Images are decoded later, one at a time.
    ///
    /// # Errors
    /// - Input: the data is empty or damaged
    /// - Config: the data is of another kind, or a setting has no effect
    /// - Io: a file cannot be read
    pub fn open(&self, task: ModelTask) -> Result<Data> {
        self.check_settings(task)?;
        let path = &self.path;
        let is_folder = presence::is_directory(path)?;
        match (task, is_folder) {
            (ModelTask::Classifier, true) => Ok(Data::Images(Arc::new(Images::Folder(ImageFolder::open(path)?)))),
            (ModelTask::Classifier, false) => {
                let images = ArrayImages::open(path, self.labels.as_deref(), self.split)?;
                if self.normalize.is_some() && images.is_floats() {
                    let message = "it applies to images of bytes, but the data is an array of floats, which are used \
                                   unchanged; leave it out";
                    return Err(Error::config(message).at("data.normalize"));
                }
                Ok(Data::Images(Arc::new(Images::Array(images))))
            }
            (_, true) => {
                let message = "found a directory, expected a text file";
                Err(Error::config(message).at(path.display()))
            }
            (ModelTask::Encoder, false) if is_jsonl(path) => {
                Ok(Data::Sentences(Arc::new(Sentences::read_jsonl(path)?)))
            }
            (ModelTask::Encoder, false) => Ok(Data::Sentences(Arc::new(Sentences::read_lines(path)?))),
            (ModelTask::EncoderDecoder, false) if is_jsonl(path) => Ok(Data::Pairs(Arc::new(Pairs::read_jsonl(path)?))),
            (ModelTask::EncoderDecoder, false) => {
                let message = "this model takes pairs: .jsonl with {\"source\": .., \"target\": ..} in each line";
                Err(Error::config(message).at(path.display()))
            }
            (ModelTask::Decoder, false) => {
                let text =
                    if is_jsonl(path) { Sentences::read_jsonl(path)?.texts.join("\n\n") } else { read_prose(path)? };
                if text.trim().is_empty() { Err(empty(path, "text")) } else { Ok(Data::Document(text.into())) }
            }
        }
    }

    /// Returns `input` with the settings of this description applied.
    ///
    /// # Errors
    /// Config: sizes and statistics are inconsistent.
    pub fn image_input(&self, input: &ImageInput) -> Result<ImageInput> {
        let mut input = input.clone();
        if self.tile.is_some() {
            if self.crop.is_some() {
                return Err(Error::config("found both tile and crop, expected one; tiles cover the whole image"));
            }
            (input.tile, input.resize) = (self.tile, None);
        }
        if let Some(size) = self.size {
            (input.resize, input.is_squeezed) = (Some(size), false);
            if self.crop.is_none() && !input.is_fixed {
                input.crop = [size.min(input.crop[0]), size.min(input.crop[1])];
            }
        }
        if let Some([height, width]) = self.crop.filter(|crop| input.is_fixed && *crop != input.crop) {
            let [own_height, own_width] = input.crop;
            let message = format!("found {height}x{width}, but this network takes only {own_height}x{own_width}");
            let error = Error::config(format!("{message}; leave it out")).at("data.crop");
            return Err(error.with_remedy(Remedy::SetKey("data.crop")));
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
    /// Returns the number of images, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Self::Folder(images) => images.len(),
            Self::Array(images) => images.len(),
        }
    }

    /// Returns the class of an image, if known.
    pub fn label(&self, index: usize) -> Option<usize> {
        match self {
            Self::Folder(images) => Some(images.label(index)),
            Self::Array(images) => images.labels().map(|labels| labels[index]),
        }
    }

    /// Returns the path of the images.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(images) => images.path(),
            Self::Array(images) => images.path(),
        }
    }

    /// Returns the file of an image.
    pub fn file(&self, index: usize) -> &Path {
        match self {
            Self::Folder(images) => images.file(index),
            Self::Array(images) => images.path(),
        }
    }

    /// Checks that every label is a class of the model.
    ///
    /// # Errors
    /// Input, with the first invalid label and its file.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        match self {
            Self::Folder(images) => images.check_labels(n_classes),
            Self::Array(images) => images.check_labels(n_classes),
        }
    }

    /// Returns the network's input for an image.
    ///
    /// # Errors
    /// - Input: the image cannot be decoded or has the wrong shape
    /// - Io: the file cannot be read
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        match self {
            Self::Folder(images) => images.pixels(index, input),
            Self::Array(images) => images.pixels(index, input),
        }
    }

    /// Predicts the bytes that reading an image and preparing it takes.
    ///
    /// # Errors
    /// - Input: the shape of an array does not fit the network.
    /// - Io: the file cannot be read.
    pub fn reading_bytes(&self, index: usize, input: &ImageInput) -> Result<u64> {
        let values = 4 * self.extents(input)?.iter().product::<usize>() as u64;
        match self {
            Self::Folder(images) => images.decoding_bytes(index, input),
            Self::Array(_) => Ok(2 * values),
        }
    }

    /// Cuts an image into tiles of at most `tile` by `tile`.
    ///
    /// # Errors
    /// Config: the images are an array, which has one size. See [`Images::pixels`] for other errors.
    pub fn tiles(&self, index: usize, input: &ImageInput, tile: usize) -> Result<ImageTiles> {
        match self {
            Self::Folder(images) => images.tiles(index, input, tile),
            Self::Array(_) => Err(Error::config("tile: found an array, expected a folder of images; leave it out")),
        }
    }

    /// Returns channels, height and width of every image.
    ///
    /// # Errors
    /// Input: the shape of an array does not fit the network.
    pub fn extents(&self, input: &ImageInput) -> Result<[usize; 3]> {
        match self {
            Self::Folder(_) => Ok([input.channels, input.crop[0], input.crop[1]]),
            Self::Array(images) => images.layout(input).map(|(extents, _)| extents),
        }
    }
}
