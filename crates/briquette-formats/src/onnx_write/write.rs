//! Writes a model into a draft: one file, or a second one for weights.

use super::encode::{ExternalPlace, encode};
use super::message::{Hole, HoleContents, WireMessage};
use super::model::{OnnxData, OnnxModel};
use crate::{Draft, DraftFile, sums};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the model's file.
pub const MODEL_FILE: &str = "model.onnx";
/// The name of the file of weights of a large model, as Hugging Face's optimum names it.
pub const DATA_FILE: &str = "model.onnx_data";
/// The largest file that protobuf libraries read.
pub const LARGEST_FILE: u64 = (1 << 31) - 1;
/// Weights start at multiples of this in the second file, so that programs can map them.
const ALIGNMENT: u64 = 4096;
/// Digits of a SHA-256.
const N_DIGITS: usize = 64;

/// The sizes of what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnnxWritten {
    /// Bytes of the model's file.
    pub model_bytes: u64,
    /// Bytes of the second file; 0 if there is none.
    pub data_bytes: u64,
}

/// Passes all bytes of a streamed tensor to a function, in order. The number is that of [`OnnxData::Streamed`].
pub type TensorBytes<'a> = dyn FnMut(usize, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> + 'a;

/// Writes [`MODEL_FILE`], and [`DATA_FILE`] if the model would have more than `largest` bytes.
///
/// Memory holds the nodes and small tensors, and what `tensor_bytes` holds. The metadata gets the SHA-256 of each streamed tensor.
///
/// # Errors
/// - Io: a file cannot be written.
/// - Bug: `tensor_bytes` passes another number of bytes than the tensor has.
/// - Errors of `tensor_bytes`.
pub fn write_onnx(
    model: &OnnxModel,
    draft: &Draft,
    largest: u64,
    tensor_bytes: &mut TensorBytes,
) -> Result<OnnxWritten> {
    let n_hash_bytes = hashes_json(model, &BTreeMap::new())?.len() as u64;
    let mut places = vec![None; model.tensors.len()];
    let mut message = encode(model, &places, DATA_FILE, n_hash_bytes)?;
    let mut data_bytes = 0;
    if message.n_bytes() > largest {
        data_bytes = place(model, &mut places)?;
        message = encode(model, &places, DATA_FILE, n_hash_bytes)?;
    }
    if message.n_bytes() > largest {
        let message = format!("has {} bytes without its weights, expected at most {largest}", message.n_bytes());
        return Err(Error::refused(message).at(MODEL_FILE));
    }
    draft.check_space(message.n_bytes() + data_bytes)?;
    let file = draft.create_file(Path::new(MODEL_FILE), message.n_bytes())?;
    let data = match data_bytes {
        0 => None,
        n_bytes => Some(draft.create_file(Path::new(DATA_FILE), n_bytes)?),
    };
    let mut to = OnnxFiles { model, tensor_bytes, hashes: BTreeMap::new() };
    if let Some(data) = &data {
        for (index, place) in places.iter().enumerate() {
            if let Some(ExternalPlace { offset, n_bytes }) = *place {
                to.tensor(data, index, offset, n_bytes)?;
            }
        }
        data.sync()?;
    }
    to.message(&file, &message)?;
    file.sync()?;
    Ok(OnnxWritten { model_bytes: message.n_bytes(), data_bytes })
}

/// Gives each streamed tensor a place in the second file, and returns the size of the file.
fn place(model: &OnnxModel, places: &mut [Option<ExternalPlace>]) -> Result<u64> {
    let mut end = 0_u64;
    for (tensor, place) in model.tensors.iter().zip(places) {
        let (OnnxData::Streamed(_), n_bytes) = (&tensor.data, tensor.n_bytes()?) else { continue };
        let offset = end.next_multiple_of(ALIGNMENT);
        *place = Some(ExternalPlace { offset, n_bytes });
        end = offset + n_bytes;
    }
    Ok(end)
}

/// The hash of each streamed tensor as JSON. Unknown hashes are zeros, so that the size is known before.
fn hashes_json(model: &OnnxModel, hashes: &BTreeMap<usize, String>) -> Result<String> {
    let streamed = model.tensors.iter().enumerate().filter(|(_, tensor)| matches!(tensor.data, OnnxData::Streamed(_)));
    let zeros = "0".repeat(N_DIGITS);
    let pairs: BTreeMap<&str, &String> =
        streamed.map(|(index, tensor)| (tensor.name.as_str(), hashes.get(&index).unwrap_or(&zeros))).collect();
    serde_json::to_string(&pairs).map_err(|error| Error::bug(format!("JSON: {error}")))
}

/// The files in progress, and the hashes of tensors so far.
struct OnnxFiles<'a, 'b> {
    model: &'a OnnxModel,
    tensor_bytes: &'a mut TensorBytes<'b>,
    hashes: BTreeMap<usize, String>,
}

impl OnnxFiles<'_, '_> {
    /// Writes the message and fills its holes in order. The hashes come last.
    fn message(&mut self, file: &DraftFile, message: &WireMessage) -> Result<()> {
        let (mut offset, mut from) = (0, 0);
        for &Hole { after, contents, n_bytes } in &message.holes {
            file.write_at(offset, &message.bytes[from..after])?;
            offset += (after - from) as u64;
            match contents {
                HoleContents::Tensor(index) => self.tensor(file, index, offset, n_bytes)?,
                HoleContents::Hashes => {
                    file.write_at(offset, hashes_json(self.model, &self.hashes)?.as_bytes())?;
                }
            }
            (offset, from) = (offset + n_bytes, after);
        }
        file.write_at(offset, &message.bytes[from..])
    }

    /// Writes a streamed tensor, and keeps its hash.
    fn tensor(&mut self, file: &DraftFile, index: usize, offset: u64, n_bytes: u64) -> Result<()> {
        let tensor = &self.model.tensors[index];
        let OnnxData::Streamed(source) = tensor.data else { return Err(Error::bug("the tensor is in memory")) };
        let (mut n_written, mut hasher) = (0, sums::Hasher::default());
        (self.tensor_bytes)(source, &mut |bytes| {
            if n_written + bytes.len() as u64 > n_bytes {
                return Err(Error::bug(format!("found more than {n_bytes} bytes")).at(&tensor.name));
            }
            hasher.update(bytes);
            file.write_at(offset + n_written, bytes)?;
            n_written += bytes.len() as u64;
            Ok(())
        })?;
        if n_written != n_bytes {
            return Err(Error::bug(format!("found {n_written} bytes, expected {n_bytes}")).at(&tensor.name));
        }
        self.hashes.insert(index, hasher.finish());
        Ok(())
    }
}
