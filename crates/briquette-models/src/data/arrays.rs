//! Images and labels as arrays: `.npy`, `.npz`, IDX (MNIST's format) and safetensors.

use super::{ImageInput, Split, npy, read_bytes};
use briquette_core::{DType, Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use std::io::{Cursor, Read};
use std::path::Path;

/// The names arrays of images are looked for under, in order.
const IMAGE_NAMES: [&str; 6] = ["x", "images", "test_x", "x_test", "test_images", "data"];
/// The same of labels.
const LABEL_NAMES: [&str; 6] = ["y", "labels", "test_y", "y_test", "test_labels", "targets"];
/// The same of images to train on.
const TRAIN_IMAGE_NAMES: [&str; 6] = ["train_x", "x_train", "train_images", "x", "images", "data"];
/// The same of their labels.
const TRAIN_LABEL_NAMES: [&str; 6] = ["train_y", "y_train", "train_labels", "y", "labels", "targets"];

/// The types of elements that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Number {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// The elements of an array. Bytes stay bytes: they are pixels, and four times smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Anything else, as f32.
    Floats(Vec<f32>),
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self::Floats(values)
    }
}

/// An array, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Values,
}

impl Number {
    fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The value of little-endian bytes, zeros behind them.
    fn value(self, bytes: [u8; 8]) -> f32 {
        let [a, b, c, d, ..] = bytes;
        match self {
            Self::U8 => f32::from(a),
            Self::I8 => f32::from(a as i8),
            Self::U16 => f32::from(u16::from_le_bytes([a, b])),
            Self::I16 => f32::from(i16::from_le_bytes([a, b])),
            Self::F16 => half::f16::from_le_bytes([a, b]).to_f32(),
            Self::U32 => u32::from_le_bytes([a, b, c, d]) as f32,
            Self::I32 => i32::from_le_bytes([a, b, c, d]) as f32,
            Self::F32 => f32::from_le_bytes([a, b, c, d]),
            Self::U64 => u64::from_le_bytes(bytes) as f32,
            Self::I64 => i64::from_le_bytes(bytes) as f32,
            Self::F64 => f64::from_le_bytes(bytes) as f32,
        }
    }
}

impl Array {
    /// The array in these bytes; the error says what does not fit.
    pub(crate) fn from_bytes(shape: Vec<usize>, number: Number, is_big: bool, bytes: &[u8]) -> Result<Self, String> {
        let n = shape.iter().try_fold(1_usize, |n, extent| n.checked_mul(*extent));
        let n_bytes = n.and_then(|n| n.checked_mul(number.width()));
        if n_bytes != Some(bytes.len()) {
            return Err(format!("{} bytes of elements do not fill shape {shape:?}; the file is damaged", bytes.len()));
        }
        if number == Number::U8 {
            return Ok(Self { shape, values: Values::Bytes(bytes.to_vec()) });
        }
        let element = |bytes: &[u8]| {
            let mut little = [0; 8];
            little[..bytes.len()].copy_from_slice(bytes);
            if is_big {
                little[..bytes.len()].reverse();
            }
            number.value(little)
        };
        Ok(Self { shape, values: Values::Floats(bytes.chunks_exact(number.width()).map(element).collect()) })
    }

    /// The array with its axes in reverse.
    pub(crate) fn reversed(self) -> Self {
        let (n, mut shape) = (self.len_of(0), self.shape);
        // Walks the result in order; `strides` are those of the source, last axis first.
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        shape.reverse();
        strides.reverse();
        let source = |mut place: usize| {
            let mut offset = 0;
            for (extent, stride) in shape.iter().zip(&strides).rev() {
                offset += place % extent * stride;
                place /= extent;
            }
            offset
        };
        let values = match &self.values {
            Values::Bytes(values) => Values::Bytes((0..n).map(|place| values[source(place)]).collect()),
            Values::Floats(values) => Values::Floats((0..n).map(|place| values[source(place)]).collect()),
        };
        Self { shape, values }
    }

    /// Elements behind the first `axis` axes.
    fn len_of(&self, axis: usize) -> usize {
        self.shape.iter().skip(axis).product()
    }

    /// Reads `.npy`, `.npz`, IDX or safetensors. Where a file holds several arrays, the first of `names` is taken.
    ///
    /// # Errors
    /// Input where it is damaged or holds none of them; Io.
    pub fn read(path: &Path, names: &[&str]) -> Result<Self> {
        let bytes = read_bytes(path)?;
        let bad = |message: String| Error::input(message).at(path.display());
        match bytes.as_slice() {
            [0x93, b'N', ..] => npy::parse(&bytes).map_err(bad),
            [b'P', b'K', ..] => from_npz(bytes, names).map_err(bad),
            [0, 0, 8..=14, ..] => from_idx(&bytes).map_err(bad),
            [0x1f, 0x8b, ..] => Err(bad("it is compressed by gzip; run gunzip on it".into())),
            _ => from_checkpoint(&Checkpoint::open(path)?, names),
        }
    }

    /// Labels: whole numbers from 0 up.
    fn to_labels(&self) -> Result<Vec<usize>, String> {
        match &self.values {
            Values::Bytes(values) => Ok(values.iter().map(|&value| usize::from(value)).collect()),
            Values::Floats(values) => values.iter().enumerate().map(label).collect(),
        }
    }
}

fn label((index, &value): (usize, &f32)) -> Result<usize, String> {
    if value >= 0.0 && value.fract() == 0.0 && value < 16_777_216.0 {
        Ok(value as usize)
    } else {
        Err(format!("label {index} is {value}, expected a whole number from 0 up"))
    }
}

fn from_npz(bytes: Vec<u8>, names: &[&str]) -> Result<Array, String> {
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(|source| format!("it is no .npz: {source}"))?;
    let found = names.iter().map(|name| format!("{name}.npy")).find(|name| archive.index_for_name(name).is_some());
    let has: Vec<String> =
        archive.file_names().flatten().map(|name| name.trim_end_matches(".npy").to_string()).collect();
    let name = found.ok_or_else(|| lacks(&has, names))?;
    let file = archive.by_name(&name).map_err(|source| format!("{name} cannot be read: {source}"))?;
    let size = file.size();
    let mut content = Vec::new();
    // A zip may claim any size, and unpack to another.
    file.take(size).read_to_end(&mut content).map_err(|source| format!("{name} cannot be read: {source}"))?;
    npy::parse(&content).map_err(|message| format!("{name}: {message}"))
}

fn lacks(has: &[String], names: &[&str]) -> String {
    format!("it has the arrays {}, expected one of {}; rename one", has.join(", "), names.join(", "))
}

fn from_idx(bytes: &[u8]) -> Result<Array, String> {
    let number = match bytes[2] {
        8 => Number::U8,
        9 => Number::I8,
        0xb => Number::I16,
        0xc => Number::I32,
        0xd => Number::F32,
        0xe => Number::F64,
        other => return Err(format!("IDX type {other} is not known; the file is damaged")),
    };
    let rank = usize::from(bytes.get(3).copied().unwrap_or(0));
    let header = bytes.get(4..4 + 4 * rank).ok_or("its header ends early; the file is damaged")?;
    let shape = header.as_chunks::<4>().0.iter().map(|extent| u32::from_be_bytes(*extent) as usize).collect();
    Array::from_bytes(shape, number, true, &bytes[4 + 4 * rank..])
}

fn from_checkpoint(checkpoint: &Checkpoint, names: &[&str]) -> Result<Array> {
    let tensors = checkpoint.tensors();
    let bad = |message: String| Error::input(message).at(checkpoint.path().display());
    let find = |name: &&str| tensors.iter().position(|info| info.name == **name);
    let has: Vec<String> = tensors.iter().map(|info| info.name.clone()).collect();
    let index = names.iter().find_map(find).ok_or_else(|| bad(lacks(&has, names)))?;
    let info = &tensors[index];
    let number = match info.dtype {
        DType::U8 => Number::U8,
        DType::I8 => Number::I8,
        DType::U16 => Number::U16,
        DType::I16 => Number::I16,
        DType::U32 => Number::U32,
        DType::I32 => Number::I32,
        DType::U64 => Number::U64,
        DType::I64 => Number::I64,
        DType::F16 => Number::F16,
        DType::F32 => Number::F32,
        DType::F64 => Number::F64,
        other => return Err(bad(format!("{} is of {other}, expected numbers", info.name))),
    };
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes)?;
    Array::from_bytes(info.shape.0.clone(), number, false, &bytes).map_err(bad)
}

/// Images as one array, and their labels where there are any.
#[derive(Debug, Clone)]
pub struct ArrayImages {
    images: Array,
    labels: Option<Vec<usize>>,
}

impl ArrayImages {
    /// Reads images, and labels from the same file or another.
    ///
    /// # Errors
    /// Input where files are damaged, hold no image, or not as many labels; Io.
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
        let from = labels.unwrap_or(path);
        let holds_both = labels.is_some() || holds_labels(path);
        let labels = if holds_both { Some(Array::read(from, label_names)?) } else { None };
        let labels = labels.map(|array| array.to_labels()).transpose();
        let labels = labels.map_err(|message| Error::input(message).at(from.display()))?;
        match &labels {
            Some(labels) if labels.len() != n_images => {
                let message = format!("{} labels for {n_images} images; they do not belong together", labels.len());
                Err(Error::input(message).at(from.display()))
            }
            _ => Ok(Self { images, labels }),
        }
    }

    /// Images.
    pub fn len(&self) -> usize {
        self.images.shape[0]
    }

    /// Never: an array without images is an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The class of every image, where it is known.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_deref()
    }

    /// Channels, height and width of an image for `input`, and whether channels come last in the array.
    ///
    /// # Errors
    /// Input where the array's shape holds no images for it.
    pub fn layout(&self, input: &ImageInput) -> Result<([usize; 3], bool)> {
        let (n, [height, width]) = (input.channels, input.crop);
        let found = match *self.images.shape.as_slice() {
            [_, k] if k == n * height * width => Some(([n, height, width], false)),
            [_, h, w] if n == 1 => Some(([1, h, w], false)),
            [_, c, h, w] if c == n => Some(([c, h, w], false)),
            [_, h, w, c] if c == n => Some(([c, h, w], true)),
            _ => None,
        };
        found.filter(|&([_, h, w], _)| !input.is_fixed || [h, w] == input.crop).ok_or_else(|| {
            Error::input(format!("images are {:?}, expected [n, {n}, {height}, {width}]", self.images.shape))
        })
    }

    /// The values of an image as the network takes them: bytes are scaled and normalised, floats are as they are.
    ///
    /// # Errors
    /// As [`ArrayImages::layout`].
    pub fn pixels(&self, index: usize, input: &ImageInput) -> Result<Vec<f32>> {
        let ([channels, height, width], is_last) = self.layout(input)?;
        let (n, area) = (channels * height * width, height * width);
        let source = |place: usize| {
            let (channel, at) = (place / area, place % area);
            (index * n + if is_last { at * channels + channel } else { place }, channel)
        };
        let value = |place: usize| match (&self.images.values, source(place)) {
            (Values::Bytes(values), (at, channel)) => input.value(values[at], channel),
            (Values::Floats(values), (at, _)) => values[at],
        };
        Ok((0..n).map(value).collect())
    }
}

/// Whether one file holds labels beside images: archives do, plain arrays do not.
fn holds_labels(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("npz" | "safetensors"))
}
