//! Images.

use crate::digits_cnn::DigitsCnnConfig;

/// How an image becomes the input of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Channels: 1 is grey, 3 is red, green, blue.
    pub channels: usize,
    /// The shorter side of an image is scaled to this; `None` scales both sides to `crop`.
    pub resize: Option<usize>,
    /// Height and width cut from the middle.
    pub crop: [usize; 2],
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
        Self { channels, resize: Some(256), crop: [224, 224], scale: 255.0, mean, std }
    }

    /// What the digits network takes.
    pub(crate) fn of_digits(config: &DigitsCnnConfig) -> Self {
        let channels = config.in_channels;
        let scale = config.pixel_scale as f32;
        Self {
            channels,
            resize: None,
            crop: config.image_size,
            scale,
            mean: vec![0.0; channels],
            std: vec![1.0; channels],
        }
    }
}
