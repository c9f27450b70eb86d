//! Reads a header tensor by tensor, so that millions of tensors need no list.

use super::header_json::METADATA;
use super::raw_header::{RawTensor, checked_tensor};
use crate::io::tensor::SharedShapes;
use crate::window::{JsonBytes, Window};
use crate::{InputFile, TensorInfo, limits};

/// Bytes of a header in memory at a time.
const WINDOW_BYTES: usize = 1 << 16;

/// A header whose tensors are sorted by name, as in files of Briquette.
///
/// Methods return `None` for a header that is invalid or not sorted. [`FileHeader`](super::FileHeader) reads any
/// header, and finds the exact error.
pub(crate) struct HeaderStream<'a> {
    json: Window<JsonBytes<'a>>,
    is_first: bool,
    has_metadata: bool,
    /// The name of the last tensor.
    last: Option<String>,
    shapes: SharedShapes,
    cover: Cover,
    data_start: u64,
    n_data: u64,
}

impl<'a> HeaderStream<'a> {
    /// Starts to read the header of a file.
    pub(crate) fn open(file: &'a InputFile) -> Option<Self> {
        let mut length = [0; 8];
        let n_rest = file.len().checked_sub(8)?;
        file.read_at(0, &mut length).ok()?;
        let n_header = u64::from_le_bytes(length);
        let n_data = n_rest.checked_sub(n_header).filter(|_| n_header <= limits::MAX_HEADER_BYTES)?;
        let data_start = 8 + n_header;
        Some(Self {
            json: Window::new(JsonBytes::new(file, &(8..data_start)), WINDOW_BYTES),
            is_first: true,
            has_metadata: false,
            last: None,
            shapes: SharedShapes::default(),
            cover: Cover::default(),
            data_start,
            n_data,
        })
    }

    /// Returns the next tensor and the offset of its first byte in the file.
    ///
    /// The inner `None` is the end of the header, whose tensors cover the data exactly.
    pub(crate) fn next(&mut self) -> Option<Option<(TensorInfo, u64)>> {
        loop {
            let Some(name) = self.json.next_key(&mut self.is_first)? else {
                let is_whole = self.json.is_at_end() && self.cover.is_whole(self.n_data);
                return is_whole.then_some(None);
            };
            if name == METADATA {
                self.pass_metadata()?;
                continue;
            }
            if self.last.as_ref().is_some_and(|last| *last >= name) {
                return None;
            }
            self.last = Some(name.clone());
            let raw: RawTensor = self.json.value()?;
            let (info, start) = checked_tensor(name, raw, &mut self.shapes).ok()?;
            self.cover.add(start, start + info.n_bytes() as u64)?;
            return Some(Some((info, self.data_start + start)));
        }
    }

    fn pass_metadata(&mut self) -> Option<()> {
        if std::mem::replace(&mut self.has_metadata, true) {
            return None;
        }
        let (mut n, mut last) = (0, None);
        self.json.for_each_entry(|json, key| {
            n += 1;
            if n > limits::MAX_METADATA || last.as_ref().is_some_and(|last| *last >= key) {
                return None;
            }
            last = Some(key);
            json.value::<String>().map(drop)
        })
    }
}

/// Ranges that tensors cover without gaps or overlaps. Tensors of one element size follow each other.
#[derive(Default)]
struct Cover(Vec<(u64, u64)>);

/// The most ranges. Files of Briquette have one for each element size.
const MAX_RANGES: usize = 32;

impl Cover {
    /// Adds the range of a tensor.
    fn add(&mut self, start: u64, end: u64) -> Option<()> {
        let before = self.0.iter().position(|range| range.1 == start);
        let after = self.0.iter().position(|range| range.0 == end && start < end);
        match (before, after) {
            (Some(before), Some(after)) => {
                self.0[before].1 = self.0[after].1;
                self.0.swap_remove(after);
            }
            (Some(before), None) => self.0[before].1 = end,
            (None, Some(after)) => self.0[after].0 = start,
            (None, None) if self.0.len() < MAX_RANGES => self.0.push((start, end)),
            (None, None) => return None,
        }
        Some(())
    }

    /// Returns whether the tensors are exactly `0..n`. Each range is a chain of tensors, so none overlap.
    fn is_whole(&self, n: u64) -> bool {
        match self.0.as_slice() {
            [] => n == 0,
            [only] => *only == (0, n),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::{FileHeader, write_header};
    use briquette_core::DType;
    use std::collections::BTreeMap;

    /// Reads the header of a file tensor by tensor; `None` if it is refused.
    fn streamed(bytes: &[u8]) -> Option<Vec<(TensorInfo, u64)>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        std::fs::write(&path, bytes).unwrap();
        let file = InputFile::open(&path).unwrap();
        let (mut stream, mut found) = (HeaderStream::open(&file)?, Vec::new());
        while let Some(tensor) = stream.next()? {
            found.push(tensor);
        }
        let mut expected = FileHeader::read(&file).unwrap().tensors;
        expected.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        assert_eq!(found, expected);
        Some(found)
    }

    fn file() -> Vec<u8> {
        let tensor = |i: usize| {
            let dtype = [DType::F32, DType::I8, DType::F16][i % 3];
            TensorInfo::checked(format!("layers.{i}"), dtype, vec![i % 5, 3]).unwrap()
        };
        let mut infos: Vec<TensorInfo> = (0..200).map(tensor).collect();
        infos.sort_by_key(|info| (std::cmp::Reverse(info.dtype.n_bits()), info.name.clone()));
        let metadata = BTreeMap::from([("format".into(), "x".into()), ("k".into(), "v".into())]);
        let (mut bytes, _) = write_header(&infos, &metadata);
        bytes.resize(bytes.len() + infos.iter().map(TensorInfo::n_bytes).sum::<usize>(), 7);
        bytes
    }

    #[test]
    fn a_stream_has_the_tensors_of_the_header() {
        assert_eq!(streamed(&file()).unwrap().len(), 200);
        assert_eq!(streamed(&[&2_u64.to_le_bytes()[..], b"{}"].concat()), Some(Vec::new()));
    }

    #[test]
    fn invalid_and_unsorted_headers_are_refused() {
        let whole = file();
        for n in (0..whole.len()).step_by(17) {
            assert_eq!(streamed(&whole[..n]), None, "{n}");
        }
        assert_eq!(streamed(&[&whole[..], b"x"].concat()), None);
        let with = |json: &str, n_data: usize| {
            streamed(&[&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![0; n_data]].concat())
        };
        let tensor = |name: &str, start: usize| {
            format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{start},{}]}}"#, start + 4)
        };
        let header = |tensors: &[String]| format!("{{{}}}", tensors.join(","));
        assert!(with(&header(&[tensor("a", 4), tensor("b", 0)]), 8).is_some());
        for (tensors, n_data) in [
            ([tensor("b", 0), tensor("a", 4)], 8),
            ([tensor("a", 0), tensor("a", 4)], 8),
            ([tensor("a", 0), tensor("b", 2)], 8),
            ([tensor("a", 0), tensor("b", 0)], 4),
            ([tensor("a", 0), tensor("b", 8)], 12),
            ([tensor("a", 0), tensor("b", 4)], 12),
            ([tensor("a", 0), tensor("b", 4)], 7),
        ] {
            assert_eq!(with(&header(&tensors), n_data), None, "{tensors:?}");
        }
    }
}
