//! Images in one folder per class.

use super::{ImageInput, ImageTiles, empty, out_of_range};
use briquette_core::{Error, Result};
use briquette_formats::presence;
use image::{DynamicImage, ImageReader};
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
        Ok(input.prepare(&self.decode(index)?))
    }

    /// Cuts an image into tiles of at most `tile` by `tile`.
    ///
    /// # Errors
    /// Input: the scaled image would be too large. See [`ImageFolder::pixels`] for other errors.
    pub fn tiles(&self, index: usize, input: &ImageInput, tile: usize) -> Result<ImageTiles> {
        let at = |message: String| Error::input(message).at(self.files[index].0.display());
        let tiles = ImageTiles::of(&self.decode(index)?, input, tile).map_err(at)?;
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
        let reader = ImageReader::open(path).map_err(|source| Error::io("cannot open", path, source))?;
        let reader = reader.with_guessed_format().map_err(|source| Error::io("cannot read", path, source))?;
        reader.decode().map_err(|source| {
            Error::input(format!("it is not a valid image: {source}; download it again")).at(path.display())
        })
    }
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
