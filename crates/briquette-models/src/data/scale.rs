//! Scales and crops images. For a very long image, only the part near the crop is scaled.

use super::ImageInput;
use super::image_input::MAX_SIDE;
use image::imageops;
use image::{ColorType, DynamicImage, GrayImage, Rgb};

/// Largest number of pixels that are scaled before cropping.
const MAX_BEFORE_CROP: usize = 1 << 26;

/// Largest number of pixels of an image that is scaled without cropping.
const MAX_WHOLE: usize = MAX_SIDE * MAX_SIDE;

impl ImageInput {
    /// Predicts the bytes that [`prepare`](Self::prepare) takes for an image of this height and width, with the image.
    ///
    /// The image is held with its conversion to bytes of the network's channels, then the converted image with its scaled
    /// rows: `image` computes four channels of f32.
    pub(super) fn preparing_bytes(&self, [height, width]: [u64; 2], n_decoded: u64) -> u64 {
        let converted = height * width * self.channels as u64;
        let kept = if n_decoded == converted { 0 } else { converted };
        let [scaled, _] = self.resized(height as usize, width as usize);
        let values = 4 * (self.channels * self.crop[0] * self.crop[1]) as u64;
        n_decoded + kept.max(16 * width * scaled as u64) + 2 * values
    }

    /// Scales, crops and normalizes an image to values `[channels, height, width]`.
    pub fn prepare(&self, image: DynamicImage) -> Vec<f32> {
        let [height, width] = self.crop;
        let (image, [full_height, full_width]) = part(image, self);
        let (top, left) = (centred(full_height, height, self.crops_down), centred(full_width, width, self.crops_down));
        let (full_width, full_height) = (full_width as u32, full_height as u32);
        let bytes: Vec<u8> = if self.channels == 1 {
            let sized = imageops::resize(&grey(image), full_width, full_height, self.filter.of_image());
            imageops::crop_imm(&sized, left, top, width as u32, height as u32).to_image().into_raw()
        } else {
            let sized = imageops::resize(&image.into_rgb8(), full_width, full_height, self.filter.of_image());
            imageops::crop_imm(&sized, left, top, width as u32, height as u32).to_image().into_raw()
        };
        let n = self.channels;
        let channel = |channel: usize| bytes[channel..].iter().step_by(n).map(move |&byte| self.value(byte, channel));
        (0..n).flat_map(channel).collect()
    }
}

/// Converts an image to grey, with the weights of Pillow (ITU-R 601-2).
pub(super) fn grey(image: DynamicImage) -> GrayImage {
    if matches!(image.color(), ColorType::L8 | ColorType::L16 | ColorType::La8 | ColorType::La16) {
        return image.into_luma8();
    }
    let image = image.into_rgb8();
    let luma = |pixel: &Rgb<u8>| {
        let [r, g, b] = pixel.0.map(u32::from);
        ((19_595 * r + 38_470 * g + 7471 * b + 0x8000) >> 16) as u8
    };
    let bytes = image.pixels().map(luma).collect();
    GrayImage::from_raw(image.width(), image.height(), bytes).expect("a byte for each pixel")
}

/// Returns the start of a center crop. Half pixels round to even in torchvision, and down in transformers.
fn centred(full: usize, cut: usize, rounds_down: bool) -> u32 {
    if rounds_down { ((full - cut) / 2) as u32 } else { (((full - cut) as f64) / 2.0).round_ties_even() as u32 }
}

/// Returns the part of an image to scale, and its scaled height and width, for a center crop.
///
/// This is the whole image unless it would exceed [`MAX_BEFORE_CROP`] pixels.
fn part(image: DynamicImage, input: &ImageInput) -> (DynamicImage, [usize; 2]) {
    let full = [image.height() as usize, image.width() as usize];
    let scaled = input.resized(full[0], full[1]);
    if scaled[0].saturating_mul(scaled[1]) <= MAX_BEFORE_CROP {
        return (image, scaled);
    }
    let [rows, columns] = [0, 1].map(|side| middle(full[side], scaled[side], input.crop[side]));
    let cut = image.crop_imm(columns.start, rows.start, columns.length, rows.length);
    (cut, [rows.scaled, columns.scaled])
}

/// Checks that an image of this height and width is not too large.
pub(crate) fn check_whole(height: usize, width: usize) -> Result<(), String> {
    if height.saturating_mul(width) <= MAX_WHOLE {
        return Ok(());
    }
    Err(format!(
        "it has {height}x{width} pixels after scaling, expected at most {MAX_WHOLE} in total; remove data.size"
    ))
}

/// The part of one side that is cut out before scaling, and its scaled length.
#[derive(Debug, PartialEq)]
struct SideSpan {
    start: u32,
    length: u32,
    scaled: usize,
}

/// Returns the middle part of a side that is scaled from `full` to `scaled` pixels.
///
/// The part covers `cut` pixels and the reach of the filter beyond them. It has exactly the same center as the
/// side.
fn middle(full: usize, scaled: usize, cut: usize) -> SideSpan {
    let reach = full.div_ceil(scaled) + 1;
    let needed = (cut * full).div_ceil(scaled) + 2 * reach;
    let length = if needed < full { needed + (full - needed) % 2 } else { full };
    let scaled = if length < full { (length * scaled + full / 2) / full } else { scaled };
    SideSpan { start: ((full - length) / 2) as u32, length: length as u32, scaled: scaled.max(cut) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{GenericImageView, Rgb, RgbImage};

    #[test]
    fn the_scaled_region_is_central_and_large_enough_for_the_crop() {
        assert_eq!(middle(1, 256, 224), SideSpan { start: 0, length: 1, scaled: 256 });
        assert_eq!(middle(60_000, 15_360_000, 224), SideSpan { start: 29_997, length: 6, scaled: 1536 });
        for (full, scaled, cut) in [(60_001, 15_360_256, 224), (1000, 16_384, 16_384), (1 << 31, 1 << 38, 1), (9, 4, 2)]
        {
            let found = middle(full, scaled, cut);
            assert!(found.scaled >= cut && found.length as usize <= full, "{found:?}");
            assert!(found.start as usize * 2 + found.length as usize == full, "centred: {found:?}");
        }
    }

    #[test]
    fn colors_become_the_greys_of_pillow() {
        let image = RgbImage::from_raw(3, 1, vec![255, 0, 0, 0, 255, 0, 0, 0, 255]).unwrap();
        assert_eq!(grey(DynamicImage::ImageRgb8(image)).into_raw(), [76, 150, 29]);
    }

    #[test]
    fn half_pixels_round_as_in_the_reference() {
        assert_eq!([centred(35, 32, false), centred(35, 32, true), centred(37, 32, false)], [2, 1, 2]);
    }

    #[test]
    fn ordinary_images_are_scaled_as_a_whole() {
        let input = ImageInput::of_imagenet(3);
        let image = DynamicImage::ImageRgb8(RgbImage::new(20, 10));
        let (part, scaled) = part(image.clone(), &input);
        assert_eq!((part.dimensions(), scaled), ((20, 10), [256, 512]));
    }

    #[test]
    fn a_long_image_has_the_same_center_as_a_shorter_one() {
        let stripes = |n: u32| {
            let at = move |place: u32| place.abs_diff(n / 2) as u8;
            DynamicImage::ImageRgb8(RgbImage::from_fn(1, n, |_, y| Rgb([at(y), 9, 7])))
        };
        let input = ImageInput { resize: Some(64), crop: [48, 48], ..ImageInput::of_imagenet(3) };
        let (long, short) = (input.prepare(stripes(60_000)), input.prepare(stripes(100)));
        assert_eq!(long.len(), 3 * 48 * 48);
        let apart = long.iter().zip(&short).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Neighbouring bytes differ by 1 / 255 / 0.224, the largest rounding difference.
        assert!(apart <= 1.5 / 255.0 / 0.224, "{apart}");
        let wide = DynamicImage::ImageLuma8(image::GrayImage::new(60_000, 1));
        assert_eq!(ImageInput::of_imagenet(1).prepare(wide).len(), 224 * 224);
    }

    #[test]
    fn images_scaled_as_a_whole_have_a_size_limit() {
        assert_eq!(check_whole(MAX_SIDE, MAX_SIDE), Ok(()));
        assert!(check_whole(256, 15_360_000).unwrap_err().contains("256x15360000"));
        assert!(check_whole(usize::MAX, 2).is_err());
    }
}
