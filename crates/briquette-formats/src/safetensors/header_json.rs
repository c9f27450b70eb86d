//! Writes the header of a safetensors file entry by entry, as there may be millions.

use crate::TensorInfo;
use std::io::{self, Write};

/// The key of the free-form strings in a header.
pub(super) const METADATA: &str = "__metadata__";

/// Calls its argument with each free-form string, sorted by key.
type ForEachString<'a> = Box<dyn FnOnce(&mut dyn FnMut(&str, &str)) + 'a>;

/// The JSON of a header: an object with sorted keys, also in nested objects.
pub struct HeaderJson<'a, W> {
    out: W,
    is_empty: bool,
    /// Free-form strings that were not written yet. Their key is sorted among the names.
    metadata: Option<ForEachString<'a>>,
}

/// A writer that only counts bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted(pub u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: Write> HeaderJson<'a, W> {
    /// Creates a header without tensors.
    ///
    /// `metadata` calls its argument with each free-form string, sorted by key. Writing to `out` must not fail.
    pub fn new(out: W, metadata: impl FnOnce(&mut dyn FnMut(&str, &str)) + 'a) -> Self {
        let mut json = Self { out, is_empty: true, metadata: Some(Box::new(metadata)) };
        json.put(b"{");
        json
    }

    /// Adds a tensor that begins at byte `start` of the data. Names must be added in sorted order.
    pub fn tensor(&mut self, info: &TensorInfo, start: u64) {
        if info.name.as_str() > METADATA {
            self.put_metadata();
        }
        self.key(&info.name);
        let end = start + info.n_bytes() as u64;
        self.put(b"{\"data_offsets\":[");
        self.number(start);
        self.put(b",");
        self.number(end);
        self.put(b"],\"dtype\":\"");
        self.put(info.dtype.name().as_bytes());
        self.put(b"\",\"shape\":[");
        for (place, extent) in info.shape.0.iter().enumerate() {
            if place > 0 {
                self.put(b",");
            }
            self.number(*extent as u64);
        }
        self.put(b"]}");
    }

    /// Finishes the JSON and returns the writer.
    pub fn finish(mut self) -> W {
        self.put_metadata();
        self.put(b"}");
        self.out
    }

    fn put_metadata(&mut self) {
        let Some(metadata) = self.metadata.take() else { return };
        let mut has_any = false;
        metadata(&mut |key, value| {
            if !std::mem::replace(&mut has_any, true) {
                self.key(METADATA);
                self.put(b"{");
            } else {
                self.put(b",");
            }
            put_text(&mut self.out, key);
            self.put(b":");
            put_text(&mut self.out, value);
        });
        if has_any {
            self.put(b"}");
        }
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.put(b",");
        }
        put_text(&mut self.out, key);
        self.put(b":");
    }

    /// Writes a number without allocating a string, as a million tensors have several each.
    fn number(&mut self, number: u64) {
        let (mut digits, mut start, mut rest) = ([b'0'; 20], 20, number);
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return self.put(&digits[start..]);
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out.write_all(bytes).expect("writing to memory does not fail");
    }
}

/// A placeholder for the length of the header. It avoids moving the header, which may have tens of megabytes.
pub const LENGTH: [u8; 8] = [0; 8];

impl HeaderJson<'_, Vec<u8>> {
    /// Returns the header for a file: its length, and JSON padded with spaces to a multiple of 8.
    ///
    /// The JSON must have been written after [`LENGTH`].
    pub fn into_header(self) -> Vec<u8> {
        let mut header = self.finish();
        header.resize(header.len().next_multiple_of(8), b' ');
        let n_json = (header.len() - LENGTH.len()) as u64;
        header[..LENGTH.len()].copy_from_slice(&n_json.to_le_bytes());
        header
    }
}

impl HeaderJson<'_, Counted> {
    /// Returns the size of the header in bytes.
    pub fn n_bytes(self) -> u64 {
        8 + self.finish().0.next_multiple_of(8)
    }
}

fn put_text(out: &mut impl Write, text: &str) {
    serde_json::to_writer(out, text).expect("writing JSON text to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::DType;

    #[test]
    fn entries_and_metadata_are_sorted_like_serde_json() {
        let names = ["A.weight", "__init__", "a\"\\\u{1}é", "layers.0.weight"];
        let infos = names.map(|name| TensorInfo::checked(name.into(), DType::BF16, vec![3, 2]).unwrap());
        let strings = [("format", "pt"), ("k\n", "\"v\"")];
        let mut object = serde_json::Map::new();
        let pairs = strings.map(|(key, value)| (key.to_string(), serde_json::Value::from(value)));
        object.insert(METADATA.to_string(), pairs.into_iter().collect());
        for (info, start) in infos.iter().zip([0, 12, 24, 36]) {
            let entry =
                serde_json::json!({ "dtype": info.dtype, "shape": *info.shape, "data_offsets": [start, start + 12] });
            object.insert(info.name.to_string(), entry);
        }
        let metadata = |each: &mut dyn FnMut(&str, &str)| strings.iter().for_each(|(key, value)| each(key, value));
        let mut json = HeaderJson::new(LENGTH.to_vec(), metadata);
        let mut counted = HeaderJson::new(Counted::default(), metadata);
        for (info, start) in infos.iter().zip([0, 12, 24, 36]) {
            json.tensor(info, start);
            counted.tensor(info, start);
        }
        let header = json.into_header();
        assert_eq!((header.len() as u64, header.len() % 8), (counted.n_bytes(), 0));
        assert_eq!(String::from_utf8_lossy(&header[8..]).trim_end(), serde_json::Value::Object(object).to_string());
        assert_eq!(HeaderJson::new(Vec::new(), |_| {}).finish(), b"{}");
    }

    #[test]
    fn numbers_are_written_completely() {
        for number in [0, 9, 10, 99, 100, 1_234_567_890, u64::MAX] {
            let mut json = HeaderJson::new(Vec::new(), |_| {});
            json.number(number);
            assert_eq!(json.out, format!("{{{number}").into_bytes());
        }
    }
}
