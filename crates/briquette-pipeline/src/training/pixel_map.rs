//! Maps images that are normalized for a student to the normalization of its teacher.

use briquette_core::{Error, Result};
use briquette_models::data::ImageInput;
use burn::tensor::{Tensor, TensorData};

/// A factor and an offset for each channel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PixelMap {
    factors: Vec<f32>,
    offsets: Vec<f32>,
}

impl PixelMap {
    /// Returns the map from images of one input to those of another. `None` if both are normalized alike.
    ///
    /// An image is `x = (b / scale - mean) / std` of bytes b, so `x' = x · f + o` per channel with
    /// `f = std · scale / (scale' · std')` and `o = (mean · scale / scale' - mean') / std'`.
    ///
    /// # Errors
    /// Config: the images have other channels, or a size that `to` does not take.
    pub(crate) fn between(from: &ImageInput, to: &ImageInput) -> Result<Option<Self>> {
        if from.channels != to.channels {
            let message = format!("found {} channels, the student has {}", to.channels, from.channels);
            return Err(Error::config(format!("{message}; use models with equal inputs")).at("teacher"));
        }
        let [[height, width], [their_height, their_width]] = [from.crop, to.crop];
        if to.is_fixed && from.crop != to.crop {
            let message = format!(
                "it takes only images of {their_height}x{their_width}, the student's have {height}x{width}; set data.crop"
            );
            return Err(Error::config(message).at("teacher"));
        }
        if (from.scale, &from.mean, &from.std) == (to.scale, &to.mean, &to.std) {
            return Ok(None);
        }
        let scale = from.scale / to.scale;
        let factors = from.std.iter().zip(&to.std).map(|(from, to)| from * scale / to).collect();
        let means = from.mean.iter().zip(&to.mean);
        let offsets = means.zip(&to.std).map(|((from, to), std)| (from * scale - to) / std).collect();
        Ok(Some(Self { factors, offsets }))
    }

    /// Applies the map to images `[batch, channels, height, width]`.
    pub(crate) fn apply(&self, images: Tensor<4>) -> Tensor<4> {
        let device = images.device();
        let row =
            |values: &[f32]| Tensor::<4>::from_data(TensorData::new(values.to_vec(), [1, values.len(), 1, 1]), &device);
        images * row(&self.factors) + row(&self.offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn mapped_images_equal_images_normalized_for_the_teacher() {
        let student = ImageInput::of_imagenet(3);
        let teacher =
            ImageInput { scale: 127.5, mean: vec![1.0, 0.9, 0.8], std: vec![1.0, 0.5, 0.25], ..student.clone() };
        let map = PixelMap::between(&student, &teacher).unwrap().unwrap();
        let normalized = |input: &ImageInput| {
            let of_channel = |c: usize| (200.0 / input.scale - input.mean[c]) / input.std[c];
            (0..3).map(of_channel).collect::<Vec<f32>>()
        };
        let images = TensorData::new(normalized(&student), [1, 3, 1, 1]);
        let found = map.apply(Tensor::from_data(images, &Device::flex()));
        let found: Vec<f32> = found.into_data().try_into_vec_as().unwrap();
        for (found, expected) in found.iter().zip(normalized(&teacher)) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    #[test]
    fn equal_inputs_need_no_map_and_other_sizes_are_refused() {
        let student = ImageInput::of_imagenet(3);
        assert_eq!(PixelMap::between(&student, &student).unwrap(), None);
        let fixed = ImageInput { crop: [384, 384], is_fixed: true, ..student.clone() };
        let error = PixelMap::between(&student, &fixed).unwrap_err();
        assert!(error.exit_code() == 2 && error.message.contains("only images of 384x384"), "{error}");
        let grey = ImageInput::of_imagenet(1);
        assert!(PixelMap::between(&student, &grey).unwrap_err().message.contains("channels"));
    }
}
