//! Conversion of images to network inputs.

use briquette_core::{Error, Remedy, Result};
use image::imageops::FilterType;

/// Largest side of scaled or cropped images.
pub(super) const MAX_SIDE: usize = 1 << 14;

/// How a pixel of a scaled image follows from its neighbours, as Pillow and torchvision name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScaleFilter {
    /// The nearest pixel.
    Nearest,
    /// A mean with weights that fall linearly.
    #[default]
    Bilinear,
    /// Cubic weights.
    Bicubic,
    /// Lanczos's weights over three pixels.
    Lanczos,
}

impl ScaleFilter {
    pub(crate) fn of_image(self) -> FilterType {
        match self {
            Self::Nearest => FilterType::Nearest,
            Self::Bilinear => FilterType::Triangle,
            Self::Bicubic => FilterType::CatmullRom,
            Self::Lanczos => FilterType::Lanczos3,
        }
    }
}

/// Conversion of images to the input of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Number of channels: 1 for grey, 3 for RGB.
    pub channels: usize,
    /// Length to which the shorter side is scaled; `None` scales both sides to `crop`.
    pub resize: Option<usize>,
    /// Whether both sides are scaled to this length, as for DeiT.
    pub is_squeezed: bool,
    /// Height and width of the center crop.
    pub crop: [usize; 2],
    /// Whether half a pixel before a crop rounds down, as in transformers, and not to even, as in torchvision.
    pub crops_down: bool,
    /// Whether the network accepts only this size.
    pub is_fixed: bool,
    /// Smallest side of an image that the network accepts.
    pub least_side: usize,
    /// Largest tile side; images are then cut into tiles instead of being cropped.
    pub tile: Option<usize>,
    /// How sizes are changed.
    pub filter: ScaleFilter,
    /// Divisor of bytes.
    pub scale: f32,
    /// Mean per channel, subtracted after scaling.
    pub mean: Vec<f32>,
    /// Standard deviation per channel, the last divisor.
    pub std: Vec<f32>,
}

impl ImageInput {
    /// Returns the input of torchvision's classifiers: shorter side 256, center crop 224, ImageNet's
    /// statistics.
    pub fn of_imagenet(channels: usize) -> Self {
        let (mean, std) = match channels {
            3 => (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]),
            _ => (vec![0.0; channels], vec![1.0; channels]),
        };
        let (resize, crop, scale) = (Some(256), [224, 224], 255.0);
        let filter = ScaleFilter::Bilinear;
        let (is_squeezed, crops_down, is_fixed, least_side, tile) = (false, false, false, 1, None);
        Self { channels, resize, is_squeezed, crop, crops_down, is_fixed, least_side, tile, filter, scale, mean, std }
    }

    /// Checks that sizes and statistics are consistent.
    ///
    /// # Errors
    /// Config, with the inconsistent setting.
    pub fn check(&self) -> Result<()> {
        if let Some(tile) = self.tile
            && (tile == 0 || self.is_fixed)
        {
            let [height, width] = self.crop;
            let message = format!("tile is {tile}, expected at least 1 and a network for images of any size");
            return Err(Error::config(format!("{message}; this one is for {height}x{width}")));
        }
        let [height, width] = self.crop;
        let is_small = self.tile.is_none() && self.resize.is_some_and(|size| size < height.max(width));
        if height == 0 || width == 0 || is_small {
            let size = self.resize.map_or("none".into(), |size| size.to_string());
            return Err(Error::config(format!("crop {height}x{width} is not within size {size}; enlarge size")));
        }
        self.check_least_side()?;
        let sides = [("data.size", self.resize.unwrap_or(0)), ("data.crop", height.max(width))];
        if let Some((name, side)) = sides.into_iter().find(|(_, side)| *side > MAX_SIDE) {
            let message = format!("found {side}, expected at most {}; use a smaller value", MAX_SIDE);
            return Err(Error::config(message).at(name).with_remedy(Remedy::SetKey(name)));
        }
        let n = self.channels;
        if self.mean.len() != n || self.std.len() != n || self.std.iter().any(|std| std.is_nan() || *std <= 0.0) {
            return Err(Error::config(format!("normalize: expected mean and std of {n} channels, with std above 0")));
        }
        Ok(())
    }

    /// Refuses images that are too small for a layer of the network.
    fn check_least_side(&self) -> Result<()> {
        let [height, width] = self.crop;
        let (name, side) = match self.tile {
            Some(tile) => ("data.tile", tile),
            None => ("data.size", height.min(width)),
        };
        if side >= self.least_side {
            return Ok(());
        }
        let message = format!("found {side}, but this network takes images of at least {0}x{0}", self.least_side);
        Err(Error::config(format!("{message}; use a larger value")).at(name).with_remedy(Remedy::SetKey(name)))
    }

    /// Converts a byte of a channel.
    pub(crate) fn value(&self, byte: u8, channel: usize) -> f32 {
        (f32::from(byte) / self.scale - self.mean[channel]) / self.std[channel]
    }

    /// Returns height and width after scaling; the longer side is rounded down, as in torchvision.
    pub(crate) fn resized(&self, height: usize, width: usize) -> [usize; 2] {
        match self.resize {
            None => self.crop,
            Some(size) if self.is_squeezed => [size; 2],
            // No overflow: a side has at most 2^32 pixels, and `check` limits `size`.
            Some(size) if height <= width => [size, (size * width / height.max(1)).max(1)],
            Some(size) => [(size * height / width.max(1)).max(1), size],
        }
    }
}
