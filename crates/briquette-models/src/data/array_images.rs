//! Arrays of equally sized images, with labels.

use super::arrays::Values;
use super::{Array, ImageInput, out_of_range};
use briquette_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Names of image arrays, in order of preference.
const IMAGE_NAMES: [&str; 6] = ["x", "images", "test_x", "x_test", "test_images", "data"];
/// Names of label arrays.
const LABEL_NAMES: [&str; 6] = ["y", "labels", "test_y", "y_test", "test_labels", "targets"];
/// Names of training images.
const TRAIN_IMAGE_NAMES: [&str; 6] = ["train_x", "x_train", "train_images", "x", "images", "data"];
/// Names of training labels.
const TRAIN_LABEL_NAMES: [&str; 6] = ["train_y", "y_train", "train_labels", "y", "labels", "targets"];

/// The split to read from a file with several arrays, found by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Test data.
    #[default]
    Test,
    /// Training data.
    Train,
}

/// Images in one array, with optional labels.
#[derive(Debug, Clone)]
pub struct ArrayImages {
    path: PathBuf,
    images: Array,
    labels: Option<Labels>,
}

#[derive(Debug, Clone)]
struct Labels {
    path: PathBuf,
    classes: Vec<usize>,
}

impl ArrayImages {
    /// Reads images, and labels from another file or, if present, from the same file.
    ///
    /// # Errors
    /// - Input: a file is damaged, there are no images, or a value is not finite
    /// - Input: the numbers of images and labels differ
    /// - Io: a file cannot be read
    pub fn open(path: &Path, labels: Option<&Path>, split: Split) -> Result<Self> {
        let (image_names, label_names) = match split {
            Split::Test => (&IMAGE_NAMES, &LABEL_NAMES),
            Split::Train => (&TRAIN_IMAGE_NAMES, &TRAIN_LABEL_NAMES),
        };
        let images = Array::read(path, image_names)?;
        let n_images = images.shape.first().copied().unwrap_or(0);
        if n_images == 0 || images.len_of(1) == 0 {
            return Err(super::empty(path, "image"));
        }
        check_type(&images)
            .and_then(|()| check_finite(&images))
            .map_err(|message| Error::input(message).at(path.display()))?;
        let found = match labels {
            Some(labels) => Some(Array::read(labels, label_names)?),
            None => Array::beside(path, label_names)?,
        };
        let from = labels.unwrap_or(path);
        let labels = found.map(|array| labels_of(&array, n_images)).transpose();
        let labels = labels.map_err(|message| Error::input(message).at(from.display()))?;
        let labels = labels.map(|classes| Labels { path: from.to_path_buf(), classes });
        Ok(Self { path: path.to_path_buf(), images, labels })
    }

    /// Returns the image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.images.shape[0]
    }

    /// Returns false: opening an array without images is an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the class of every image, if known.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_ref().map(|labels| labels.classes.as_slice())
    }

    /// Checks that every label is a class of the model.
    ///
    /// # Errors
    /// Input, with the label file and the first invalid label.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        let Some(Labels { path, classes }) = &self.labels else { return Ok(()) };
        let Some(at) = classes.iter().position(|&class| class >= n_classes) else { return Ok(()) };
        Err(out_of_range(&format!("label {} of image {at}", classes[at]), n_classes).at(path.display()))
    }

    /// Returns whether values are floats, which are used unchanged.
    pub(crate) fn is_floats(&self) -> bool {
        matches!(self.images.values, Values::Floats(_))
    }

    /// Returns channels, height and width of an image for `input`, and whether channels are the last axis.
    ///
    /// # Errors
    /// Input: the array's shape does not fit `input`.
    pub fn layout(&self, input: &ImageInput) -> Result<([usize; 3], bool)> {
        let (n, [height, width]) = (input.channels, input.crop);
        let found = match *self.images.shape.as_slice() {
            [_, k] if k == n * height * width => Some(([n, height, width], false)),
            [_, h, w] if n == 1 => Some(([1, h, w], false)),
            [_, c, h, w] if c == n => Some(([c, h, w], false)),
            [_, h, w, c] if c == n => Some(([c, h, w], true)),
            _ => None,
        };
        let is_taken = |[_, h, w]: [usize; 3]| match input.is_fixed {
            true => [h, w] == input.crop,
            false => h.min(w) >= input.least_side,
        };
        found.filter(|(extents, _)| is_taken(*extents)).ok_or_else(|| {
            let expected = match (found, input.least_side) {
                (Some(_), least) if !input.is_fixed => format!("height and width of at least {least}"),
                _ => format!("[n, {n}, {height}, {width}]"),
            };
            let message = format!("images are {:?}, expected {expected}", self.images.shape);
            Error::input(message).at(self.path.display())
        })
    }

    /// Returns the network's input for an image: bytes are scaled and normalized, floats are unchanged.
    ///
    /// # Errors
    /// See [`ArrayImages::layout`].
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        let ([channels, height, width], is_last) = self.layout(input)?;
        let (n, area) = (channels * height * width, height * width);
        let source = |place: usize| {
            let (channel, at) = (place / area, place % area);
            (index * n + if is_last { at * channels + channel } else { place }, channel)
        };
        let value = |place: usize| match (&self.images.values, source(place)) {
            (Values::Bytes(values), (at, channel)) => input.value(values[at], channel),
            (Values::Floats(values) | Values::Integers(values), (at, _)) => values[at],
        };
        Ok((0..n).map(value).collect())
    }
}

fn labels_of(array: &Array, n_images: usize) -> Result<Vec<usize>, String> {
    let labels = array.to_labels()?;
    if labels.len() != n_images {
        return Err(format!("found {} labels, expected {n_images}, one per image", labels.len()));
    }
    Ok(labels)
}

/// Refuses integers other than bytes: they are neither pixels of a known range nor what a network takes.
fn check_type(images: &Array) -> Result<(), String> {
    match images.values {
        Values::Integers(_) => {
            Err("images are integers of another type than bytes; write them as bytes (uint8), or as floats that the \
                 network takes"
                .to_string())
        }
        _ => Ok(()),
    }
}

/// Refuses values that are not finite: their logits would be too, and would look like damaged weights.
fn check_finite(images: &Array) -> Result<(), String> {
    let Values::Floats(values) = &images.values else { return Ok(()) };
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (image, place) = (at / images.len_of(1), at % images.len_of(1));
    Err(format!("value {place} of image {image} is {}, expected finite numbers; correct the data", values[at]))
}
