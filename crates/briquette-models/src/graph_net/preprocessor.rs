//! The `preprocessor_config.json` of an image model of transformers.

use crate::data::{ImageInput, ScaleFilter};
use briquette_core::{Error, Result};
use serde::Deserialize;

/// Name of the file beside the weights.
pub(super) const PREPROCESSOR: &str = "preprocessor_config.json";
/// Name of the file with the settings of a tokenizer and of such a preprocessor together.
pub(super) const PROCESSOR: &str = "processor_config.json";

/// From this shorter side on, ConvNeXt scales images to a square without cropping them.
const UNCROPPED: usize = 384;

/// The keys that determine how images are prepared.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Preprocessor {
    image_processor_type: Option<String>,
    feature_extractor_type: Option<String>,
    do_resize: Option<bool>,
    size: Option<Sides>,
    crop_size: Option<Sides>,
    do_center_crop: Option<bool>,
    /// Share of the scaled side that ConvNeXt keeps.
    crop_pct: Option<f64>,
    /// A filter of Pillow, by its number.
    resample: Option<u8>,
    do_rescale: Option<bool>,
    rescale_factor: Option<f64>,
    do_normalize: Option<bool>,
    image_mean: Option<Vec<f32>>,
    image_std: Option<Vec<f32>>,
}

/// The keys that determine how sounds are prepared.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SoundPreprocessor {
    pub(super) feature_size: Option<usize>,
    pub(super) n_fft: Option<usize>,
    pub(super) hop_length: Option<usize>,
    pub(super) sampling_rate: Option<u32>,
}

/// A size in one of the forms that transformers writes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a size as a number, as height and width, or as shortest_edge")]
enum Sides {
    Square(usize),
    Exact { height: usize, width: usize },
    Shorter { shortest_edge: usize, longest_edge: Option<usize> },
}

impl Sides {
    fn shorter(self) -> usize {
        match self {
            Self::Square(side) | Self::Shorter { shortest_edge: side, .. } => side,
            Self::Exact { height, width } => height.min(width),
        }
    }

    fn both(self) -> [usize; 2] {
        match self {
            Self::Square(side) | Self::Shorter { shortest_edge: side, .. } => [side; 2],
            Self::Exact { height, width } => [height, width],
        }
    }
}

impl Preprocessor {
    /// Applies these settings to the input of a network.
    ///
    /// A network for images of one size keeps its size, and takes the proportion of scaling and cropping from here.
    ///
    /// # Errors
    /// Input: a number is not in its range.
    pub(super) fn apply(self, input: &mut ImageInput) -> Result<()> {
        self.check_supported()?;
        let (resize, crop) = self.sides(input)?;
        input.is_squeezed = self.is_square() && resize.is_some();
        input.crops_down = true;
        match (input.is_fixed, resize) {
            (false, _) => (input.resize, input.crop) = (resize, crop),
            (true, None) => {}
            (true, Some(side)) => {
                let (own, cut) = (input.crop[0].max(input.crop[1]), crop[0].max(crop[1]));
                input.resize = Some((own * side).div_ceil(cut));
            }
        }
        input.filter = match self.resample {
            None => input.filter,
            Some(0) => ScaleFilter::Nearest,
            Some(1) => ScaleFilter::Lanczos,
            Some(2) => ScaleFilter::Bilinear,
            Some(3) => ScaleFilter::Bicubic,
            Some(other) => {
                let message = "expected 0 (nearest), 1 (lanczos), 2 (bilinear) or 3 (bicubic)";
                return Err(Error::input(format!("resample is {other}, {message}")));
            }
        };
        if self.do_rescale == Some(false) {
            input.scale = 1.0;
        } else if let Some(factor) = self.rescale_factor {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(Error::input(format!("rescale_factor is {factor}, expected a number above 0")));
            }
            input.scale = (1.0 / factor) as f32;
        }
        if self.do_normalize == Some(false) {
            (input.mean, input.std) = (vec![0.0; input.channels], vec![1.0; input.channels]);
            return Ok(());
        }
        input.mean = self.image_mean.unwrap_or(std::mem::take(&mut input.mean));
        input.std = self.image_std.unwrap_or(std::mem::take(&mut input.std));
        Ok(())
    }

    /// Returns whether both sides are scaled to the same length before a crop.
    fn is_square(&self) -> bool {
        let is_of_deit = |name: &Option<String>| name.as_deref().is_some_and(|name| name.starts_with("DeiT"));
        match self.size {
            Some(Sides::Exact { height, width }) => height == width,
            Some(Sides::Square(_)) => {
                is_of_deit(&self.image_processor_type) || is_of_deit(&self.feature_extractor_type)
            }
            _ => false,
        }
    }

    /// Refuses settings that would prepare images of other sizes than the network gets here.
    fn check_supported(&self) -> Result<()> {
        let refused =
            |message: &str| Err(Error::input(format!("{message} is not supported; prepare the images before")));
        if self.do_resize == Some(false) {
            return refused("do_resize = false");
        }
        if let Some(Sides::Shorter { longest_edge: Some(_), .. }) = self.size {
            return refused("a size with longest_edge");
        }
        let Some(size) = self.size else { return Ok(()) };
        if self.do_center_crop == Some(false) && matches!(size, Sides::Shorter { .. }) && self.crop_pct.is_none() {
            return refused("shortest_edge without a crop");
        }
        match self.crop_size.filter(|_| self.do_center_crop != Some(false)) {
            Some(crop) if crop.both().into_iter().max() > Some(size.shorter()) => {
                refused(&format!("a crop of {:?} from images of {}", crop.both(), size.shorter()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the length of the scaled shorter side, none if both sides are scaled to the crop, and the crop.
    fn sides(&self, input: &ImageInput) -> Result<(Option<usize>, [usize; 2])> {
        let limited = |sides: Sides| match sides.both().into_iter().find(|side| !(1..=1 << 14).contains(side)) {
            Some(side) => Err(Error::input(format!("a size of images is {side}, expected 1 to 16384"))),
            None => Ok(sides),
        };
        let size = self.size.map(limited).transpose()?;
        let crop = self.crop_size.filter(|_| self.do_center_crop != Some(false)).map(limited).transpose()?;
        let share = self.crop_pct.filter(|share| *share > 0.1 && *share <= 1.0);
        Ok(match (size, crop, share) {
            (Some(size), Some(crop), _) => (Some(size.shorter()), crop.both()),
            (Some(size), None, Some(share)) if size.shorter() < UNCROPPED => {
                (Some((size.shorter() as f64 / share) as usize), size.both())
            }
            (Some(size @ Sides::Shorter { .. }), None, None) => (Some(size.shorter()), size.both()),
            (Some(size), None, _) => (None, size.both()),
            (None, Some(crop), _) => (None, crop.both()),
            (None, None, _) => (input.resize, input.crop),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn applied(file: Value, fixed: Option<usize>) -> Result<ImageInput> {
        let mut input = ImageInput::of_imagenet(3);
        if let Some(side) = fixed {
            (input.is_fixed, input.crop, input.resize) = (true, [side; 2], None);
        }
        serde_json::from_value::<Preprocessor>(file).unwrap().apply(&mut input)?;
        Ok(input)
    }

    fn sides(file: Value, fixed: Option<usize>) -> (Option<usize>, [usize; 2]) {
        let input = applied(file, fixed).unwrap();
        (input.resize, input.crop)
    }

    #[test]
    fn sizes_follow_the_processors_of_transformers() {
        let square = json!({ "height": 224, "width": 224 });
        let cropped = json!({ "size": { "shortest_edge": 256 }, "crop_size": square, "do_center_crop": true });
        assert_eq!(sides(json!({ "size": square }), Some(224)), (None, [224, 224]), "ViT");
        assert_eq!(sides(cropped.clone(), None), (Some(256), [224, 224]));
        assert_eq!(sides(cropped, Some(518)), (Some(592), [518, 518]), "DINOv2, trained with other images");
        assert_eq!(sides(json!({ "size": 256, "crop_size": 224 }), Some(224)), (Some(256), [224, 224]), "old CLIP");
        let larger = json!({ "size": { "height": 256, "width": 256 }, "crop_size": square, "do_center_crop": true });
        let old = json!({ "size": 256, "crop_size": 224, "feature_extractor_type": "DeiTFeatureExtractor" });
        for file in [larger, old] {
            let deit = applied(file, Some(224)).unwrap();
            assert_eq!((deit.resized(300, 600), deit.crop), ([256, 256], [224, 224]), "DeiT");
        }
        assert_eq!(sides(json!({ "size": 224, "crop_pct": 0.875 }), None), (Some(256), [224, 224]), "ConvNeXt");
        assert_eq!(sides(json!({ "size": { "shortest_edge": 384 }, "crop_pct": 1.0 }), None), (None, [384, 384]));
        assert_eq!(sides(json!({}), None), (Some(256), [224, 224]));
    }

    #[test]
    fn values_follow_the_file() {
        let half = json!({ "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098 });
        let found = applied(half, None).unwrap();
        assert_eq!((found.mean[0], found.std[2], found.scale), (0.5, 0.5, 255.0));
        assert_eq!(applied(json!({ "resample": 3 }), None).unwrap().filter, ScaleFilter::Bicubic);
        let found = applied(json!({ "do_normalize": false, "do_rescale": false }), None).unwrap();
        assert_eq!((found.mean[0], found.std[2], found.scale), (0.0, 1.0, 1.0));
    }

    #[test]
    fn impossible_numbers_are_errors() {
        for (file, phrase) in [
            (json!({ "size": 0 }), "a size of images is 0"),
            (json!({ "crop_size": { "height": 4, "width": 99999 } }), "is 99999, expected 1 to 16384"),
            (json!({ "resample": 4 }), "resample is 4, expected 0 (nearest)"),
            (json!({ "do_resize": false }), "do_resize = false is not supported"),
            (json!({ "size": { "shortest_edge": 8, "longest_edge": 9 } }), "longest_edge is not supported"),
            (json!({ "size": { "shortest_edge": 28 }, "crop_size": 32 }), "a crop of [32, 32] from images of 28"),
            (json!({ "size": { "shortest_edge": 8 }, "do_center_crop": false }), "shortest_edge without a crop"),
            (json!({ "rescale_factor": 0.0 }), "rescale_factor is 0, expected a number above 0"),
        ] {
            let error = applied(file, None).unwrap_err();
            assert!(error.message.contains(phrase) && error.exit_code() == 4, "{error}");
        }
    }
}
