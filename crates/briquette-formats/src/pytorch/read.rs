//! Reads the tensors of a PyTorch file of any version and their locations.

use crate::io::crc::Sum;
use crate::io::{InputFile, LeftOut, TensorInfo};
use crate::pytorch::gathered::{self, Gathered};
use crate::pytorch::opened::Opened;
use crate::pytorch::pickle::{self, Flattened, View};
use crate::pytorch::stored::Stored;
use crate::pytorch::{agree, archive, stream, tar};
use briquette_core::{Error, ErrorKind, Result};

/// Largest ratio of the bytes of all tensors to the file size. Views share storages, and a crafted file could
/// have millions.
const MAX_SHARING: u64 = 16;

/// The location of a tensor's bytes.
#[derive(Debug)]
pub enum TensorPlace {
    /// Contiguous, at this offset of the file.
    At(u64),
    /// Gathered on each read: a strided view, or a compressed storage.
    Gathered(Box<Gathered>),
}

/// The model in a file.
#[derive(Debug)]
pub struct TorchModel {
    /// The tensors and their locations.
    pub tensors: Vec<(TensorInfo, TensorPlace)>,
    /// The contents of the file that are not part of the model.
    pub left_out: Vec<LeftOut>,
    /// The layers of a TorchScript program whose class is a transposed convolution.
    pub transposed_layers: Vec<String>,
    /// Bytes of the model: of the file, or of its tensors if the file holds more than the model.
    pub n_bytes: u64,
}

/// Locates the tensors of the model under `key`, or of the model that is found.
///
/// The returned file verifies the checksums of the archive while it is read.
///
/// # Errors
/// - Input: the file is damaged, is not written by PyTorch, or would run code in another reader.
/// - Config: the file does not have the key.
/// - Io: the file cannot be read.
pub fn read(file: InputFile, key: Option<&str>) -> Result<(InputFile, TorchModel)> {
    let (sums, contents) = read_checked(&file, key).map_err(|error| match error.kind {
        ErrorKind::Input | ErrorKind::Config => error.at(file.path().display()),
        _ => error,
    })?;
    Ok((file.with_sums(sums), contents))
}

fn read_checked(file: &InputFile, key: Option<&str>) -> Result<(Vec<Sum>, TorchModel)> {
    let mut head = [0; 2];
    file.read_at(0, &mut head[..file.len().min(2) as usize])?;
    let is_zip = head == *b"PK";
    let opened = match head {
        _ if is_zip => archive::open(file)?,
        // A pickle starts with its protocol version.
        [0x80, _] => stream::open(file)?,
        _ => tar::open(file)?,
    };
    let found = pickle::flatten(&opened.pickle, &opened.root, key)?;
    let model_bytes = pickle::bytes_of(&found.tensors);
    let viewed = viewed(file, &opened, &found)?;
    if is_zip && opened.program_bytes.is_none() {
        agree::agree(file, &opened.pickle, &found, viewed.iter().map(|(info, ..)| info))?;
    }
    let mut left_out = found.left_out;
    left_out.extend(opened.program_bytes.map(|n_bytes| LeftOut {
        key: "code".into(),
        n_bytes,
        is_model: false,
        is_unread: false,
    }));
    let n_bytes = if left_out.is_empty() { file.len() } else { model_bytes };
    let tensors = viewed.into_iter().zip(found.tensors).map(|((info, stored, at), (_, view))| {
        (info, at.map_or_else(|| TensorPlace::Gathered(Box::new(Gathered::new(view, stored))), TensorPlace::At))
    });
    let (tensors, transposed_layers) = (tensors.collect(), found.transposed_layers);
    Ok((opened.sums, TorchModel { tensors, left_out, transposed_layers, n_bytes }))
}

/// A tensor, the location of its storage, and its offset in the file if it is contiguous.
type Viewed = (TensorInfo, Stored, Option<u64>);

fn viewed(file: &InputFile, opened: &Opened, found: &Flattened) -> Result<Vec<Viewed>> {
    let mut tensors: Vec<Viewed> = Vec::with_capacity(found.tensors.len());
    for (name, view) in &found.tensors {
        let checked = checked_view(view, name, opened);
        tensors.push(checked.map_err(|error| error.at(format_args!("tensor {name:?}")))?);
    }
    let total = tensors.iter().try_fold(0_u64, |sum, (info, ..)| sum.checked_add(info.n_bytes() as u64));
    if total.is_none_or(|total| total > file.len().saturating_mul(MAX_SHARING)) {
        return Err(Error::input("its tensors have far more bytes than the file; save them with .clone()"));
    }
    Ok(tensors)
}

/// Checks a view against its storage. Returns the offset in the file if the view is contiguous.
fn checked_view(view: &View, name: &str, opened: &Opened) -> Result<Viewed> {
    let info = TensorInfo::checked(name.into(), view.dtype, view.shape.clone())?;
    let storage = &view.storage;
    let stored = opened.storages.get(&*storage.key).ok_or_else(|| {
        let key = format!("{}{}", opened.place, storage.key);
        Error::input(format!("its storage {key:?} is missing; save the model again"))
    })?;
    let width = (view.dtype.n_bits() / 8) as u64;
    let last = storage.first.checked_add(storage.n_elements).filter(|&last| last <= storage.n_stored);
    let is_there = storage.n_stored.checked_mul(storage.width()).is_some_and(|n| n <= stored.n_bytes);
    let declared = storage.n_elements.checked_mul(storage.width()).filter(|_| last.is_some() && is_there);
    let end = gathered::reach(view).and_then(|end| end.checked_mul(width));
    let fits = declared.zip(end).is_some_and(|(declared, end)| end <= declared);
    if !fits || info.n_bytes() as u64 > stored.n_bytes {
        let message = format!(
            "{} {} from element {} does not fit its storage of {} bytes; save the model again with .contiguous()",
            view.dtype, info.shape, view.offset, stored.n_bytes
        );
        return Err(Error::input(message));
    }
    let is_empty = info.n_elements() == 0;
    let is_plain = stored.is_plain && (is_empty || gathered::first_dense_axis(view) == 0);
    let first = if is_empty { 0 } else { gathered::first_byte(view) };
    Ok((info, *stored, is_plain.then_some(stored.start + first)))
}
