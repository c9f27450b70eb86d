//! Images in one folder per class, and how an image becomes the input of a network.

use super::array_images::out_of_range;
use super::{Tiles, empty, scale};
use crate::digits_cnn::DigitsCnnConfig;
use briquette_core::{Error, Result};
use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageReader};
use std::path::{Path, PathBuf};

/// What files of images end in.
const EXTENSIONS: [&str; 5] = ["bmp", "jpeg", "jpg", "png", "webp"];

/// How an image becomes the input of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Channels: 1 is grey, 3 is red, green, blue.
    pub channels: usize,
    /// The shorter side of an image is scaled to this; `None` scales both sides to `crop`.
    pub resize: Option<usize>,
    /// Height and width cut from the middle.
    pub crop: [usize; 2],
    /// Whether the network takes images of no other size.
    pub is_fixed: bool,
    /// Images are cut into tiles of at most this height and width, instead of being cropped.
    pub tile: Option<usize>,
    /// What bytes are divided by.
    pub scale: f32,
    /// Subtracted from each channel after that.
    pub mean: Vec<f32>,
    /// What each channel is divided by at last.
    pub std: Vec<f32>,
}

impl ImageInput {
    /// What torchvision's pretrained classifiers take: shorter side 256, 224 from the middle, ImageNet's statistics.
    pub fn of_imagenet(channels: usize) -> Self {
        let (mean, std) = match channels {
            3 => (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]),
            _ => (vec![0.0; channels], vec![1.0; channels]),
        };
        Self { channels, resize: Some(256), crop: [224, 224], is_fixed: false, tile: None, scale: 255.0, mean, std }
    }

    /// What the digits network takes.
    pub(crate) fn of_digits(config: &DigitsCnnConfig) -> Self {
        let channels = config.in_channels;
        let (mean, std) = (vec![0.0; channels], vec![1.0; channels]);
        let (crop, scale) = (config.image_size, config.pixel_scale as f32);
        Self { channels, resize: None, crop, is_fixed: true, tile: None, scale, mean, std }
    }

    /// Whether sizes and statistics go together.
    ///
    /// # Errors
    /// Config, saying what does not.
    pub fn check(&self) -> Result<()> {
        if let Some(tile) = self.tile
            && (tile == 0 || self.is_fixed)
        {
            let [height, width] = self.crop;
            let message = format!("tile is {tile}, expected at least 1 and a network that takes images of any size");
            return Err(Error::config(format!("{message}; this one is for {height}x{width}")));
        }
        let [height, width] = self.crop;
        let is_small = self.tile.is_none() && self.resize.is_some_and(|size| size < height.max(width));
        if height == 0 || width == 0 || is_small {
            let size = self.resize.map_or("none".into(), |size| size.to_string());
            return Err(Error::config(format!("crop {height}x{width} is not within size {size}; enlarge size")));
        }
        let sides = [("data.size (--size)", self.resize.unwrap_or(0)), ("data.crop", height.max(width))];
        if let Some((name, side)) = sides.into_iter().find(|(_, side)| *side > scale::MAX_SIDE) {
            let message = format!("found {side}, expected at most {}; take a smaller one", scale::MAX_SIDE);
            return Err(Error::config(message).at(name));
        }
        let n = self.channels;
        if self.mean.len() != n || self.std.len() != n || self.std.iter().any(|std| std.is_nan() || *std <= 0.0) {
            return Err(Error::config(format!("normalize needs mean and std of {n} channels, std above 0")));
        }
        Ok(())
    }

    /// Values `[channels, height, width]` of an image, sized, cropped and normalised.
    pub fn prepare(&self, image: &DynamicImage) -> Vec<f32> {
        let [height, width] = self.crop;
        let (image, [full_height, full_width]) = scale::part(image, self);
        let (top, left) = (middle(full_height, height), middle(full_width, width));
        let (full_width, full_height) = (full_width as u32, full_height as u32);
        let bytes: Vec<u8> = if self.channels == 1 {
            let sized = imageops::resize(&image.to_luma8(), full_width, full_height, FilterType::Triangle);
            imageops::crop_imm(&sized, left, top, width as u32, height as u32).to_image().into_raw()
        } else {
            let sized = imageops::resize(&image.to_rgb8(), full_width, full_height, FilterType::Triangle);
            imageops::crop_imm(&sized, left, top, width as u32, height as u32).to_image().into_raw()
        };
        let n = self.channels;
        let channel = |channel: usize| bytes[channel..].iter().step_by(n).map(move |&byte| self.value(byte, channel));
        (0..n).flat_map(channel).collect()
    }

    /// The value of a byte in a channel.
    pub(crate) fn value(&self, byte: u8, channel: usize) -> f32 {
        (f32::from(byte) / self.scale - self.mean[channel]) / self.std[channel]
    }

    /// Height and width after scaling; the longer side is rounded down, as torchvision does.
    pub(crate) fn resized(&self, height: usize, width: usize) -> [usize; 2] {
        match self.resize {
            None => self.crop,
            // A side has at most 2^32 pixels, and `size` has been held against its bound.
            Some(size) if height <= width => [size, (size * width / height.max(1)).max(1)],
            Some(size) => [(size * height / width.max(1)).max(1), size],
        }
    }
}

/// Where a cut from the middle starts; half a pixel goes to the even side, as in torchvision.
fn middle(full: usize, cut: usize) -> u32 {
    (((full - cut) as f64) / 2.0).round_ties_even() as u32
}

/// Images in one folder per class.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    path: PathBuf,
    files: Vec<(PathBuf, usize)>,
    classes: Vec<String>,
}

impl ImageFolder {
    /// Lists a directory of class folders. Classes are numbered in the order of their names; where every name is a
    /// number, that number is the class.
    ///
    /// # Errors
    /// Input where there is no class or one has no image; Io.
    pub fn open(path: &Path) -> Result<Self> {
        let folders: Vec<PathBuf> = sorted(path)?.into_iter().filter(|path| path.is_dir()).collect();
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let classes: Vec<String> = folders.iter().map(name).collect();
        let numbers: Option<Vec<usize>> = classes.iter().map(|name| name.parse().ok()).collect();
        let numbers = numbers.unwrap_or_else(|| (0..classes.len()).collect());
        let mut files = Vec::new();
        for (folder, class) in folders.iter().zip(numbers) {
            let found: Vec<PathBuf> = sorted(folder)?.into_iter().filter(|path| is_image(path)).collect();
            if found.is_empty() {
                let message = format!("found no image in this class, expected {}; remove it", EXTENSIONS.join(", "));
                return Err(Error::input(message).at(folder.display()));
            }
            files.extend(found.into_iter().map(|file| (file, class)));
        }
        if files.is_empty() {
            Err(empty(path, "folder of images, one for each class,"))
        } else {
            Ok(Self { path: path.to_path_buf(), files, classes })
        }
    }

    /// Images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Never: a folder without images is an error.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether every folder is one of a model's classes.
    ///
    /// # Errors
    /// Input, naming the first that is not.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        let Some((file, class)) = self.files.iter().find(|(_, class)| *class >= n_classes) else { return Ok(()) };
        let folder = file.parent().unwrap_or(&self.path);
        Err(out_of_range(&format!("class {class}, as this folder is numbered,"), n_classes).at(folder.display()))
    }

    /// Names of the folders, in order.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The class of an image.
    pub fn label(&self, index: usize) -> usize {
        self.files[index].1
    }

    /// The prepared values of an image.
    ///
    /// # Errors
    /// Input where it does not decode; Io where it cannot be read.
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        Ok(input.prepare(&self.decode(index)?))
    }

    /// An image in tiles of at most `tile` by `tile`.
    ///
    /// # Errors
    /// As [`ImageFolder::pixels`]; Input where it would be too large once scaled.
    pub fn tiles(&self, index: usize, input: &ImageInput, tile: usize) -> Result<Tiles> {
        let tiles = Tiles::of(&self.decode(index)?, input, tile);
        tiles.map_err(|message| Error::input(message).at(self.files[index].0.display()))
    }

    /// An image as it is.
    ///
    /// # Errors
    /// As [`ImageFolder::pixels`].
    pub fn decode(&self, index: usize) -> Result<DynamicImage> {
        let path = &self.files[index].0;
        let reader = ImageReader::open(path).map_err(|source| Error::io("cannot open", path, source))?;
        let reader = reader.with_guessed_format().map_err(|source| Error::io("cannot read", path, source))?;
        reader
            .decode()
            .map_err(|source| Error::input(format!("it does not decode: {source}; fetch it again")).at(path.display()))
    }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    path.is_file() && extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

fn sorted(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).map_err(|source| Error::io("cannot list", path, source))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", path, source))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}
