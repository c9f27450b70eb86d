//! burnpack, burn's container format: a 10-byte header, CBOR descriptors, and tensors aligned to 256 bytes.
//!
//! The crate `burn-pack` defines the header and the descriptors. This module reads them with its own checks and
//! at explicit offsets. It also writes them itself, because the writer of `burn-pack` needs each tensor whole
//! in memory.

use crate::json::{MetadataStrings, UniqueMap};
use crate::safetensors::FileHeader;
use crate::{InputFile, TensorInfo};
use briquette_core::{DType, Error, Result, Shape};
use burn_pack::{DType as BurnDType, HEADER_SIZE, MAX_METADATA_SIZE, TENSOR_ALIGNMENT};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct Descriptors {
    tensors: UniqueMap<Descriptor>,
    #[serde(default)]
    metadata: MetadataStrings,
}

#[derive(Debug, Serialize, Deserialize)]
struct Descriptor {
    dtype: BurnDType,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Reads and checks the header of a burnpack file. Offsets in the result count from the start of the file.
///
/// # Errors
/// - Input: the file is damaged or has tensors in burn's own quantization.
/// - Io: the file cannot be read.
pub fn read_header(file: &InputFile) -> Result<FileHeader> {
    read_checked(file).map_err(|error| match error.kind {
        briquette_core::ErrorKind::Input => error.at(file.path().display()),
        _ => error,
    })
}

fn read_checked(file: &InputFile) -> Result<FileHeader> {
    let damaged = |what: &str| Error::input(format!("{what}; the burnpack file is damaged or cut short"));
    let mut head = [0; HEADER_SIZE];
    if file.len() < HEADER_SIZE as u64 {
        return Err(damaged("the header is incomplete"));
    }
    file.read_at(0, &mut head)?;
    let header = burn_pack::Header::from_bytes(&head).map_err(|source| damaged(&source.to_string()))?;
    if header.version > burn_pack::FORMAT_VERSION {
        return Err(Error::input(format!(
            "found burnpack version {}, expected at most {}; use a newer briquette",
            header.version,
            burn_pack::FORMAT_VERSION
        )));
    }
    let n_metadata = u64::from(header.metadata_size);
    if header.metadata_size > MAX_METADATA_SIZE || HEADER_SIZE as u64 + n_metadata > file.len() {
        return Err(damaged(&format!("the descriptors claim {n_metadata} bytes")));
    }
    let mut cbor = vec![0; n_metadata as usize];
    file.read_at(HEADER_SIZE as u64, &mut cbor)?;
    let found: Descriptors = ciborium::de::from_reader_with_recursion_limit(cbor.as_slice(), 128)
        .map_err(|source| damaged(&format!("the descriptors are not valid: {}", cbor_words(source))))?;
    let data_start = burn_pack::aligned_data_section_start(cbor.len()) as u64;
    let tensors =
        found.tensors.0.into_iter().map(|(name, tensor)| checked_tensor(name, tensor, data_start, file.len()));
    let mut tensors = tensors.collect::<Result<Vec<_>>>()?;
    tensors.sort_by_key(|(info, start)| (*start, info.n_bytes()));
    for pair in tensors.windows(2) {
        if pair[0].1 + pair[0].0.n_bytes() as u64 > pair[1].1 {
            return Err(damaged("overlaps the tensor before it").at(format_args!("tensor {:?}", pair[1].0.name)));
        }
    }
    Ok(FileHeader { tensors, metadata: found.metadata.0 })
}

/// Returns the message of a ciborium error, without the names of ciborium's types.
fn cbor_words(error: ciborium::de::Error<std::io::Error>) -> String {
    use ciborium::de::Error::{Io, RecursionLimitExceeded, Semantic, Syntax};
    match error {
        Io(_) => "they end too early".into(),
        Syntax(offset) => format!("invalid CBOR at byte {offset}"),
        Semantic(_, message) => message,
        RecursionLimitExceeded => "they are nested too deeply".into(),
    }
}

fn checked_tensor(name: String, tensor: Descriptor, data_start: u64, n_file: u64) -> Result<(TensorInfo, u64)> {
    let at = |message: String, name: &str| Error::input(message).at(format_args!("tensor {name:?}"));
    let Some(dtype) = from_burn(tensor.dtype) else {
        let message =
            format!("type {:?} is burn's own quantization; save the model before quantizing it", tensor.dtype);
        return Err(at(message, &name));
    };
    let info = TensorInfo::checked(name, dtype, tensor.shape.0)?;
    let (start, end) = tensor.data_offsets;
    let place = data_start.checked_add(start).filter(|_| end.checked_sub(start) == Some(info.n_bytes() as u64));
    match place {
        Some(place) if place.checked_add(info.n_bytes() as u64).is_some_and(|end| end <= n_file) => Ok((info, place)),
        _ => Err(at(
            format!(
                "found bytes {start}..{end}, which do not fit {} {}; the file is damaged or cut short",
                info.dtype, info.shape
            ),
            &info.name,
        )),
    }
}

/// Returns the header bytes of a burnpack file and the offset of each tensor in the file.
///
/// # Errors
/// Config: burnpack does not support the type of a tensor.
pub fn write_header(tensors: &[TensorInfo], metadata: &BTreeMap<String, String>) -> Result<(Vec<u8>, Vec<u64>)> {
    #[derive(Serialize)]
    struct Out<'a> {
        tensors: BTreeMap<&'a str, Descriptor>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        metadata: &'a BTreeMap<String, String>,
    }
    let (mut descriptors, mut starts, mut offset) = (BTreeMap::new(), Vec::new(), 0_u64);
    for info in tensors {
        let dtype = to_burn(info.dtype).ok_or_else(|| {
            Error::config(format!("burnpack has no type {}; choose another format", info.dtype))
                .at(format_args!("tensor {:?}", info.name))
        })?;
        let end = offset + info.n_bytes() as u64;
        let shape = Shape::clone(&info.shape);
        descriptors.insert(info.name.as_str(), Descriptor { dtype, shape, data_offsets: (offset, end) });
        starts.push(offset);
        offset = end.next_multiple_of(TENSOR_ALIGNMENT);
    }
    let mut cbor = Vec::new();
    ciborium::ser::into_writer(&Out { tensors: descriptors, metadata }, &mut cbor)
        .map_err(|source| Error::bug(format!("the burnpack descriptors: {source}")))?;
    let n_metadata = u32::try_from(cbor.len()).map_err(|_| Error::config("too many tensors for burnpack"))?;
    let mut header = burn_pack::Header::new(n_metadata).into_bytes().to_vec();
    header.append(&mut cbor);
    let data_start = burn_pack::aligned_data_section_start(n_metadata as usize);
    header.resize(data_start, 0);
    Ok((header, starts.into_iter().map(|start| data_start as u64 + start).collect()))
}

fn from_burn(dtype: BurnDType) -> Option<DType> {
    use burn_std::BoolStore;
    Some(match dtype {
        BurnDType::F64 => DType::F64,
        BurnDType::F32 | BurnDType::Flex32 => DType::F32,
        BurnDType::F16 => DType::F16,
        BurnDType::BF16 => DType::BF16,
        BurnDType::I64 => DType::I64,
        BurnDType::I32 => DType::I32,
        BurnDType::I16 => DType::I16,
        BurnDType::I8 => DType::I8,
        BurnDType::U64 => DType::U64,
        BurnDType::U32 | BurnDType::Bool(BoolStore::U32) => DType::U32,
        BurnDType::U16 => DType::U16,
        BurnDType::U8 | BurnDType::Bool(BoolStore::U8) => DType::U8,
        BurnDType::Bool(BoolStore::Native) => DType::Bool,
        BurnDType::QFloat(_) => return None,
    })
}

/// Returns burn's element type, if burn has it.
pub fn to_burn(dtype: DType) -> Option<BurnDType> {
    Some(match dtype {
        DType::F64 => BurnDType::F64,
        DType::F32 => BurnDType::F32,
        DType::F16 => BurnDType::F16,
        DType::BF16 => BurnDType::BF16,
        DType::I64 => BurnDType::I64,
        DType::I32 => BurnDType::I32,
        DType::I16 => BurnDType::I16,
        DType::I8 => BurnDType::I8,
        DType::U64 => BurnDType::U64,
        DType::U32 => BurnDType::U32,
        DType::U16 => BurnDType::U16,
        DType::U8 => BurnDType::U8,
        DType::Bool => BurnDType::Bool(burn_std::BoolStore::Native),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_pack::{Bytes, Reader, Tensor, Writer};

    fn infos() -> Vec<TensorInfo> {
        [
            ("b", DType::F32, vec![2, 3]),
            ("a", DType::I8, vec![5]),
            ("c", DType::Bool, vec![]),
            ("d", DType::F16, vec![0, 2]),
        ]
        .into_iter()
        .map(|(name, dtype, shape)| TensorInfo::checked(name.into(), dtype, shape).unwrap())
        .collect()
    }

    #[test]
    fn burn_reads_written_files() {
        let (mut file, starts) = write_header(&infos(), &BTreeMap::from([("k".into(), "v".into())])).unwrap();
        for (info, start) in infos().iter().zip(&starts) {
            file.resize(*start as usize, 0);
            file.extend((0..info.n_bytes()).map(|i| i as u8 + 1));
        }
        let reader = Reader::from_bytes(Bytes::from_bytes_vec(file)).unwrap();
        assert_eq!(reader.metadata()["k"], "v");
        assert_eq!(reader.tensor_data("b").unwrap(), (1..=24).collect::<Vec<u8>>());
        assert_eq!(reader.tensor_data("a").unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(reader.tensor_names(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn files_of_burn_are_read_and_every_prefix_is_refused() {
        let tensors = infos().into_iter().map(|info| {
            let bytes = Bytes::from_bytes_vec((0..info.n_bytes()).map(|i| i as u8 + 1).collect());
            Tensor::new(info.name.to_string(), to_burn(info.dtype).unwrap(), info.shape.0.clone(), Some(7), bytes)
        });
        let bytes = Writer::new(tensors.collect()).with_metadata("k", "v").into_bytes().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.bpk");
        for n in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..n]).unwrap();
            let file = InputFile::open(&path).unwrap();
            let header = read_header(&file);
            if n < bytes.len() {
                assert!(header.is_err(), "{n} of {} bytes", bytes.len());
                continue;
            }
            let header = header.unwrap();
            assert_eq!((header.tensors.len(), header.metadata["k"].as_str()), (4, "v"));
            for (info, start) in header.tensors {
                let mut found = vec![0; info.n_bytes()];
                file.read_at(start, &mut found).unwrap();
                assert_eq!(found, (0..info.n_bytes()).map(|i| i as u8 + 1).collect::<Vec<_>>(), "{}", info.name);
            }
        }
    }
}
