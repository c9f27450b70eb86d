//! Cuts large images into tiles of one size.

use super::{ImageInput, scale};
use image::DynamicImage;
use image::imageops;

/// An image cut into tiles of one size that cover it. Tiles overlap if their size does not divide the image.
#[derive(Debug, Clone)]
pub struct ImageTiles {
    bytes: Vec<u8>,
    n_channels: usize,
    width: usize,
    extents: [usize; 2],
    corners: Vec<[usize; 2]>,
}

/// Returns the extent of tiles of at most `most` that cover `size`, and their starts.
fn cut(size: usize, most: usize) -> (usize, Vec<usize>) {
    let n = size.div_ceil(most).max(1);
    let extent = size.div_ceil(n);
    (extent, (0..n).map(|i| i * (size - extent) / (n - 1).max(1)).collect())
}

impl ImageTiles {
    /// Cuts an image into tiles of at most `most` by `most`, after scaling its shorter side to `input.resize`,
    /// if set.
    ///
    /// The error describes an image that is too large.
    pub(crate) fn of(image: DynamicImage, input: &ImageInput, most: usize) -> Result<Self, String> {
        let (height, width) = (image.height() as usize, image.width() as usize);
        let [height, width] = input.resize.map_or([height, width], |_| input.resized(height, width));
        if input.resize.is_some() {
            scale::check_whole(height, width)?;
        }
        let (w, h) = (width as u32, height as u32);
        let bytes = match (input.channels, input.resize) {
            (1, None) => scale::grey(image).into_raw(),
            (1, Some(_)) => imageops::resize(&scale::grey(image), w, h, input.filter.of_image()).into_raw(),
            (_, None) => image.into_rgb8().into_raw(),
            (_, Some(_)) => imageops::resize(&image.into_rgb8(), w, h, input.filter.of_image()).into_raw(),
        };
        let ((tile_height, rows), (tile_width, cols)) = (cut(height, most), cut(width, most));
        let corners = rows.iter().flat_map(|&row| cols.iter().map(move |&col| [row, col])).collect();
        Ok(Self { bytes, n_channels: input.channels, width, extents: [tile_height, tile_width], corners })
    }

    /// Returns row and column of each tile's start.
    pub fn corners(&self) -> &[[usize; 2]] {
        &self.corners
    }

    /// Returns channels, height and width of every tile.
    pub const fn extents(&self) -> [usize; 3] {
        [self.n_channels, self.extents[0], self.extents[1]]
    }

    /// Returns the normalized values `[channels, height, width]` of the tile at a corner.
    pub fn pixels(&self, [top, left]: [usize; 2], input: &ImageInput) -> Vec<f32> {
        let ([height, width], n) = (self.extents, self.n_channels);
        let row = |row: usize| &self.bytes[((top + row) * self.width + left) * n..][..width * n];
        let channel = |channel: usize| {
            (0..height)
                .flat_map(move |at| row(at)[channel..].iter().step_by(n).map(move |&byte| input.value(byte, channel)))
        };
        (0..n).flat_map(channel).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_one_size_and_cover_every_pixel() {
        for (size, most, n) in [(2240, 512, 5), (512, 512, 1), (513, 512, 2), (7, 3, 3), (1, 9, 1)] {
            let (extent, starts) = cut(size, most);
            assert!(extent <= most && starts.len() == n && starts[0] == 0 && starts[n - 1] + extent == size, "{size}");
            assert!(starts.windows(2).all(|pair| pair[1] <= pair[0] + extent && pair[1] > pair[0]), "{size}");
        }
    }

    #[test]
    fn a_tile_has_the_pixels_at_its_corner() {
        let image = image::RgbImage::from_fn(7, 5, |x, y| image::Rgb([x as u8, y as u8, 9]));
        let input = ImageInput { resize: None, ..ImageInput::of_imagenet(3) };
        let tiles = ImageTiles::of(image.into(), &input, 3).unwrap();
        assert_eq!((tiles.extents(), tiles.corners().len()), ([3, 3, 3], 6));
        for &[top, left] in tiles.corners() {
            let pixels = tiles.pixels([top, left], &input);
            let expected = |channel, byte| input.value(byte, channel);
            assert_eq!(pixels[4], expected(0, left as u8 + 1), "column of the middle");
            assert_eq!(pixels[9 + 4], expected(1, top as u8 + 1), "row of the middle");
            assert_eq!((pixels.len(), pixels[26]), (27, expected(2, 9)));
        }
        let input = ImageInput { resize: Some(10), ..input };
        let tiles = ImageTiles::of(image::GrayImage::new(7, 5).into(), &input, 8).unwrap();
        assert_eq!((tiles.extents(), tiles.corners()), ([3, 5, 7], &[[0, 0], [0, 7], [5, 0], [5, 7]][..]));
    }
}
