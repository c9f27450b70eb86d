//! Images in one folder per class.

use super::{ImageInput, ImageTiles, empty, out_of_range};
use briquette_core::{Error, Result};
use briquette_formats::presence;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// File extensions of images.
const EXTENSIONS: [&str; 5] = ["bmp", "jpeg", "jpg", "png", "webp"];

/// Images in one folder per class.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    path: PathBuf,
    files: Vec<(PathBuf, usize)>,
    classes: Vec<String>,
}

impl ImageFolder {
    /// Lists a directory of class folders.
    ///
    /// Classes are numbered in the order of their names. If every name is a number, the number is the class.
    ///
    /// # Errors
    /// - Input: there is no class, or a class has no image
    /// - Io: a directory cannot be read
    pub fn open(path: &Path) -> Result<Self> {
        let folders = filtered(sorted(path)?, presence::is_directory)?;
        let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let classes: Vec<String> = folders.iter().map(name).collect();
        let numbers: Option<Vec<usize>> = classes.iter().map(|name| name.parse().ok()).collect();
        let numbers = numbers.unwrap_or_else(|| (0..classes.len()).collect());
        let mut files = Vec::new();
        for (folder, class) in folders.iter().zip(numbers) {
            let found = filtered(sorted(folder)?, is_image)?;
            if found.is_empty() {
                let message =
                    format!("found no image in this class, expected {}; remove the folder", EXTENSIONS.join(", "));
                return Err(Error::input(message).at(folder.display()));
            }
            files.extend(found.into_iter().map(|file| (file, class)));
        }
        if files.is_empty() {
            Err(empty(path, "folder of images (one per class)"))
        } else {
            Ok(Self { path: path.to_path_buf(), files, classes })
        }
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns false: opening a folder without images is an error.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that every folder is a class of the model.
    ///
    /// # Errors
    /// Input, with the first invalid folder.
    pub fn check_labels(&self, n_classes: usize) -> Result<()> {
        let Some((file, class)) = self.files.iter().find(|(_, class)| *class >= n_classes) else { return Ok(()) };
        let folder = file.parent().unwrap_or(&self.path);
        Err(out_of_range(&format!("class {class}, the number of this folder,"), n_classes).at(folder.display()))
    }

    /// Returns the names of the folders, in order.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the file of an image.
    pub fn file(&self, index: usize) -> &Path {
        &self.files[index].0
    }

    /// Returns the class of an image.
    pub fn label(&self, index: usize) -> usize {
        self.files[index].1
    }

    /// Returns the network's input for an image.
    ///
    /// # Errors
    /// - Input: the image cannot be decoded
    /// - Io: the file cannot be read
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        Ok(input.prepare(self.decode(index)?))
    }

    /// Cuts an image into tiles of at most `tile` by `tile`.
    ///
    /// # Errors
    /// Input: the scaled image would be too large. See [`ImageFolder::pixels`] for other errors.
    pub fn tiles(&self, index: usize, input: &ImageInput, tile: usize) -> Result<ImageTiles> {
        let at = |message: String| Error::input(message).at(self.files[index].0.display());
        let tiles = ImageTiles::of(self.decode(index)?, input, tile).map_err(at)?;
        let ([_, height, width], least) = (tiles.extents(), input.least_side);
        if height.min(width) < least {
            return Err(at(format!(
                "its tiles are {height}x{width}, expected at least {least}x{least}; use larger images"
            )));
        }
        Ok(tiles)
    }

    /// Decodes an image.
    ///
    /// # Errors
    /// See [`ImageFolder::pixels`].
    pub fn decode(&self, index: usize) -> Result<DynamicImage> {
        let path = &self.files[index].0;
        self.reader(index)?.decode().map_err(|source| {
            Error::input(format!("it is not a valid image: {source}; download it again")).at(path.display())
        })
    }

    /// Predicts the bytes that decoding and preparing an image takes, from its header; 0 for a file without a valid one.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub fn decoding_bytes(&self, index: usize, input: &ImageInput) -> Result<u64> {
        /// Bytes of a decoder's tables and buffers.
        const BUFFERS: u64 = 1 << 20;
        let (path, reader) = (self.file(index), self.reader(index)?);
        let format = reader.format();
        let n_file = std::fs::metadata(path).map_or(0, |file| file.len());
        let Ok(decoder) = reader.into_decoder() else { return Ok(0) };
        let ((width, height), n_decoded) = (decoder.dimensions(), decoder.total_bytes());
        let beside = match format {
            // Coefficients of 16 bits for each value.
            Some(ImageFormat::Jpeg) if jpeg_is_progressive(path).unwrap_or(true) => n_file + 2 * n_decoded,
            Some(ImageFormat::Jpeg) => n_file,
            // Brightness of each pixel, and colors of each four.
            Some(ImageFormat::WebP) => n_file + n_decoded,
            _ => 0,
        };
        let of_preparing = input.preparing_bytes([height, width].map(u64::from), n_decoded);
        Ok(BUFFERS + (n_decoded + beside).max(of_preparing))
    }

    fn reader(&self, index: usize) -> Result<ImageReader<BufReader<File>>> {
        let path = &self.files[index].0;
        let reader = ImageReader::open(path).map_err(|source| Error::io("cannot open", path, source))?;
        reader.with_guessed_format().map_err(|source| Error::io("cannot read", path, source))
    }
}

/// Returns whether a JPEG file has several passes over its image: whether its frame header is of such a kind.
fn jpeg_is_progressive(path: &Path) -> std::io::Result<bool> {
    let mut file = BufReader::new(File::open(path)?);
    file.seek_relative(2)?;
    loop {
        let mut marker = [0; 4];
        file.read_exact(&mut marker)?;
        match marker {
            // Fill bytes may come before a marker.
            [0xFF, 0xFF, ..] => file.seek_relative(-3)?,
            [0xFF, 0xC4 | 0xC8 | 0xCC, ..] => skip(&mut file, marker)?,
            [0xFF, kind @ 0xC0..=0xCF, ..] => return Ok(kind & 3 == 2),
            _ => skip(&mut file, marker)?,
        }
    }
}

/// Skips the rest of a segment of a JPEG file, whose length counts itself.
fn skip(file: &mut BufReader<File>, [_, _, high, low]: [u8; 4]) -> std::io::Result<()> {
    file.seek_relative(i64::from(u16::from_be_bytes([high, low])) - 2)
}

/// Returns the paths that pass the check.
fn filtered(paths: Vec<PathBuf>, check: impl Fn(&Path) -> Result<bool>) -> Result<Vec<PathBuf>> {
    let checked = paths.into_iter().filter_map(|path| match check(&path) {
        Ok(is_taken) => is_taken.then_some(Ok(path)),
        Err(error) => Some(Err(error)),
    });
    checked.collect()
}

fn is_image(path: &Path) -> Result<bool> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let is_named_so = extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()));
    Ok(is_named_so && presence::is_file(path)?)
}

fn sorted(path: &Path) -> Result<Vec<PathBuf>> {
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Ok(presence::entries(path)?.into_iter().filter(|path| !is_hidden(path)).collect())
}
