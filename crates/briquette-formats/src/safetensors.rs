//! The safetensors format: an 8-byte length, a JSON header, and the tensors one after another.

mod header_json;
mod header_stream;
mod raw_header;

use crate::{InputFile, TensorInfo, limits, tensor};
use briquette_core::{DType, Error, Result};
pub use header_json::{Counted, HeaderJson, LENGTH};
pub(crate) use header_stream::HeaderStream;
use raw_header::RawHeader;
use std::collections::BTreeMap;

/// A checked header: the tensors cover the data exactly, in order, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// The tensors in the order of their data, each with the offset of its first byte in the file.
    pub tensors: Vec<(TensorInfo, u64)>,
    /// Free-form strings.
    pub metadata: BTreeMap<String, String>,
}

impl FileHeader {
    /// Reads and checks the header of a file.
    ///
    /// # Errors
    /// - Input: the file is not valid safetensors.
    /// - Io: the file cannot be read.
    pub fn read(file: &InputFile) -> Result<Self> {
        Self::read_checked(file).map_err(|error| match error.kind {
            briquette_core::ErrorKind::Input => error.at(file.path().display()),
            _ => error,
        })
    }

    fn read_checked(file: &InputFile) -> Result<Self> {
        let mut length = [0; 8];
        if file.len() < 8 {
            return Err(Error::input(format!("found {} bytes, expected a safetensors file of at least 8", file.len())));
        }
        file.read_at(0, &mut length)?;
        let n_header = u64::from_le_bytes(length);
        if n_header > limits::MAX_HEADER_BYTES || n_header > file.len() - 8 {
            let message = format!(
                "the header claims {n_header} bytes, expected at most {}; the file is cut short or not safetensors",
                limits::MAX_HEADER_BYTES.min(file.len() - 8)
            );
            return Err(Error::input(message));
        }
        let raw = RawHeader::read(file, 8..8 + n_header)?;
        Self::checked(raw, n_header, file.len() - 8 - n_header)
    }

    /// Checks a header against the number of data bytes that follow it.
    ///
    /// # Errors
    /// Input: the header is invalid. If a single tensor is the cause, the error names it.
    pub fn parse(json: &[u8], n_data: u64) -> Result<Self> {
        let n_header = json.len() as u64;
        Self::checked(RawHeader::parse(json), n_header, n_data)
    }

    fn checked(raw: serde_json::Result<RawHeader>, n_header: u64, n_data: u64) -> Result<Self> {
        let raw = raw.map_err(|source| {
            Error::input(format!("the safetensors header is not valid: {source}; the file is damaged"))
        })?;
        if let Some(error) = raw.failed {
            return Err(error);
        }
        let mut tensors = raw.tensors;
        if let Some((first, _)) = tensor::first_repeated(tensors.len(), |index| &tensors[index].0.name) {
            let message = format!("the safetensors header is not valid: key {:?} occurs twice", tensors[first].0.name);
            return Err(Error::input(format!("{message}; the file is damaged")));
        }
        // Most files are sorted already, and sorting needs memory.
        if !tensors.is_sorted_by_key(|(info, start)| (*start, info.n_bytes())) {
            sort_by_start(&mut tensors);
        }
        check_cover(&tensors, n_data)?;
        let data_start = 8 + n_header;
        tensors.iter_mut().for_each(|(_, start)| *start += data_start);
        Ok(Self { tensors, metadata: raw.metadata })
    }
}

/// Sorts tensors by the start of their data, empty ones first. The sort is stable.
///
/// Files of Briquette list tensors by name, so all tensors move. Each is moved once.
fn sort_by_start(tensors: &mut [(TensorInfo, u64)]) {
    let mut from: Vec<(u64, usize)> = tensors.iter().map(|(_, start)| *start).zip(0..).collect();
    let n_bytes = |index: usize| tensors[index].0.n_bytes();
    from.sort_unstable_by(|(a_start, a), (b_start, b)| {
        a_start.cmp(b_start).then_with(|| (n_bytes(*a), a).cmp(&(n_bytes(*b), b)))
    });
    for first in 0..from.len() {
        let mut place = first;
        loop {
            let next = std::mem::replace(&mut from[place].1, place);
            if next == first {
                break;
            }
            tensors.swap(place, next);
            place = next;
        }
    }
}

fn check_cover(tensors: &[(TensorInfo, u64)], n_data: u64) -> Result<()> {
    let mut covered = 0;
    for (info, start) in tensors {
        if *start != covered {
            let kind = if *start < covered { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let message = format!("starts at byte {start}, expected {covered}: it {kind}; the file is damaged");
            return Err(Error::input(message).at(format_args!("tensor {:?}", info.name)));
        }
        covered = start + info.n_bytes() as u64;
    }
    if covered == n_data {
        return Ok(());
    }
    let what =
        if covered > n_data { "it is cut short, copy it again" } else { "it has bytes that belong to no tensor" };
    Err(Error::input(format!("found {n_data} bytes of tensors, the header declares {covered}; {what}")))
}

/// Returns the header bytes of a file, and each tensor's offset in the file.
///
/// The header has its length, JSON, and spaces up to a multiple of 8. The tensors follow each other in the given order.
pub fn write_header(tensors: &[TensorInfo], metadata: &BTreeMap<String, String>) -> (Vec<u8>, Vec<u64>) {
    let (mut offset, mut starts) = (0_u64, Vec::with_capacity(tensors.len()));
    for info in tensors {
        starts.push(offset);
        offset += info.n_bytes() as u64;
    }
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    let mut json = HeaderJson::new(LENGTH.to_vec(), |each| metadata.iter().for_each(|(key, value)| each(key, value)));
    by_name.into_iter().for_each(|index| json.tensor(&tensors[index], starts[index]));
    let header = json.into_header();
    let n_header = header.len() as u64;
    (header, starts.into_iter().map(|start| n_header + start).collect())
}

/// Encodes a small file from tensors by name, each with its type, shape and bytes.
///
/// # Errors
/// Config: a shape is too large.
pub fn to_file(tensors: &BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>) -> Result<Vec<u8>> {
    to_file_saying(tensors, &BTreeMap::new())
}

/// Encodes a small file with free-form strings in its header: see [`to_file`].
///
/// The `safetensors` crate writes these strings in random order, so equal contents would give different bytes.
///
/// # Errors
/// See [`to_file`].
pub fn to_file_saying(
    tensors: &BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let info = |(name, (dtype, shape, _)): (&String, &(DType, Vec<usize>, _))| {
        TensorInfo::checked(name.clone(), *dtype, shape.clone())
    };
    let infos = tensors.iter().map(info).collect::<Result<Vec<_>>>()?;
    let (mut bytes, starts) = write_header(&infos, metadata);
    for ((_, _, data), start) in tensors.values().zip(starts) {
        bytes.resize((start as usize).max(bytes.len()), 0);
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::header_json::METADATA;
    use super::*;
    use proptest::prelude::*;

    fn error_of(json: &str, n_data: u64) -> String {
        FileHeader::parse(json.as_bytes(), n_data).unwrap_err().to_string()
    }

    #[test]
    fn each_kind_of_damage_has_its_own_message() {
        let tensor = |name: &str, start: u64, end: u64| {
            format!(r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[{start},{end}]}}"#, (end - start) / 4)
        };
        let header = |tensors: &[String]| format!("{{{}}}", tensors.join(","));
        let cases = [
            (String::new(), 0, "not valid"),
            ("{}x".into(), 0, "not valid"),
            ("[]".into(), 0, "an object of tensors"),
            (header(&[tensor("a", 0, 4), tensor("a", 4, 8)]), 8, "occurs twice"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#.into(), 8, "occurs twice"),
            (r#"{"__metadata__":{"k":"1","k":"2"}}"#.into(), 0, "occurs twice"),
            (r#"{"__metadata__":{"k":1}}"#.into(), 0, "invalid type"),
            (header(&[tensor("a", 0, 8), tensor("b", 4, 12)]), 12, "overlaps"),
            (header(&[tensor("a", 0, 4), tensor("b", 8, 12)]), 12, "hole"),
            (header(&[tensor("a", 4, 8)]), 8, "hole"),
            (header(&[tensor("a", 0, 8)]), 4, "cut short"),
            (header(&[tensor("a", 0, 8)]), 12, "belong to no tensor"),
            (r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#.into(), 4, "unknown type"),
            (r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#.into(), 4, "not valid"),
            (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#.into(), 4, "not valid"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(), 4, "expected 8"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#.into(), 4, "expected 4"),
            (r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#.into(), 2, "no size in bytes"),
            (r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,4]}}"#.into(), 4, "no size in bytes"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#.into(), 4, "unknown field"),
        ];
        for (json, n_data, expected) in cases {
            let found = error_of(&json, n_data);
            assert!(found.contains(expected), "{json}: {found:?} lacks {expected:?}");
        }
    }

    #[test]
    fn tensors_are_stably_sorted_by_start() {
        for n in [0, 1, 2, 3, 100, 1000] {
            let tensor = |i: usize| {
                let (place, n_bytes) = (i * 7919 % n / 3, i * 31 % 3 % 2);
                (TensorInfo::checked(format!("t{i}"), DType::U8, vec![n_bytes]).unwrap(), place as u64)
            };
            let mut tensors: Vec<(TensorInfo, u64)> = (0..n).map(tensor).collect();
            let mut expected = tensors.clone();
            expected.sort_by_key(|(info, start)| (*start, info.n_bytes()));
            sort_by_start(&mut tensors);
            assert_eq!(tensors, expected, "{n}");
        }
    }

    #[test]
    fn every_prefix_of_a_good_file_is_refused() {
        let infos = [
            TensorInfo::checked("a".into(), DType::F32, vec![2, 3]).unwrap(),
            TensorInfo::checked("empty".into(), DType::I8, vec![0]).unwrap(),
            TensorInfo::checked("s".into(), DType::BF16, vec![]).unwrap(),
        ];
        let (mut bytes, _) = write_header(&infos, &BTreeMap::from([("format".into(), "pt".into())]));
        bytes.extend([7; 26]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        for n in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..n]).unwrap();
            let header = FileHeader::read(&InputFile::open(&path).unwrap());
            assert_eq!(header.is_ok(), n == bytes.len(), "{n} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn a_false_length_is_refused_before_allocation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        for length in [0, 1, 3, 100_000_001, u64::MAX, u64::MAX - 7] {
            std::fs::write(&path, [&length.to_le_bytes()[..], b"{}"].concat()).unwrap();
            assert!(FileHeader::read(&InputFile::open(&path).unwrap()).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn a_written_header_reads_back(
            shapes in prop::collection::btree_map("[a-zé\"\\\\/.]{0,8}", prop::collection::vec(0_usize..4, 0..4), 0..6),
        ) {
            let infos: Vec<_> = shapes.into_iter().filter(|(name, _)| name != METADATA)
                .map(|(name, shape)| TensorInfo::checked(name, DType::F16, shape).unwrap()).collect();
            let (bytes, starts) = write_header(&infos, &BTreeMap::new());
            prop_assert_eq!(bytes.len() % 8, 0);
            let n_data = infos.iter().map(|info| info.n_bytes() as u64).sum();
            let header = FileHeader::parse(&bytes[8..], n_data).unwrap();
            for (info, start) in infos.iter().zip(starts) {
                prop_assert!(header.tensors.contains(&(info.clone(), start)));
            }
        }
    }
}
