//! Parses the JSON of a header in pieces, as it may be as large as the result.

use super::header_json::METADATA;
use crate::io::tensor::SharedShapes;
use crate::io::tensor_name::{SHARED_NAMES, TensorName};
use crate::json::MetadataStrings;
use crate::window::{JsonBytes, Window};
use crate::{InputFile, TensorInfo, limits};
use briquette_core::{DType, Error, Result, Shape};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::de::Read;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::BufReader;
use std::ops::Range;

/// A parsed header. Each tensor is checked at once, so that millions of tensors need no second representation.
#[derive(Debug)]
pub(super) struct RawHeader {
    /// Tensors with the start of their data.
    pub(super) tensors: Vec<(TensorInfo, u64)>,
    pub(super) metadata: BTreeMap<String, String>,
    /// The error of the first invalid tensor.
    pub(super) failed: Option<Error>,
    shapes: SharedShapes,
}

/// A tensor as the JSON declares it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTensor {
    dtype: NamedType,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// An element type, or the name of an unknown type.
#[derive(Debug)]
struct NamedType(Result<DType, String>);

impl<'de> Deserialize<'de> for NamedType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = NamedType;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, name: &str) -> Result<NamedType, E> {
                Ok(NamedType(DType::from_name(name).ok_or_else(|| name.to_string())))
            }
        }
        deserializer.deserialize_str(Name)
    }
}

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 16;

impl RawHeader {
    /// Reads the JSON in a range of a file, which is never in memory as a whole.
    ///
    /// # Errors
    /// The outer error is one of reading the file, the inner error one of the JSON.
    pub(super) fn read(file: &InputFile, bytes: Range<u64>) -> Result<serde_json::Result<Self>> {
        let n_header = bytes.end - bytes.start;
        if let Some(raw) = Self::of_window(&mut Window::new(JsonBytes::new(file, &bytes), READ_BYTES), n_header) {
            return Ok(Ok(raw));
        }
        // A bytewise reader finds the error and its position.
        let mut json = BufReader::with_capacity(READ_BYTES, JsonBytes::new(file, &bytes));
        let raw = Self::of_json(serde_json::Deserializer::from_reader(&mut json), n_header);
        match json.into_inner().failed {
            Some(error) => Err(error),
            None => Ok(raw),
        }
    }

    /// Parses JSON in memory.
    pub(super) fn parse(json: &[u8]) -> serde_json::Result<Self> {
        Self::of_json(serde_json::Deserializer::from_slice(json), json.len() as u64)
    }

    /// Reserves memory for the tensors of `n_header` bytes of JSON.
    ///
    /// Almost no entry is shorter in JSON than in memory, so this is enough. Unused memory is never touched and
    /// costs nothing.
    fn with_room_for(n_header: u64) -> Self {
        const ENTRY_BYTES: u64 = size_of::<(TensorInfo, u64)>() as u64;
        let most = n_header.min(limits::MAX_HEADER_BYTES) / ENTRY_BYTES;
        let (tensors, metadata) = (Vec::with_capacity(most as usize), BTreeMap::new());
        Self { tensors, metadata, failed: None, shapes: SharedShapes::default() }
    }

    fn push(&mut self, name: String, raw: RawTensor) {
        match checked_tensor(name, raw, &mut self.shapes) {
            Ok(tensor) => self.tensors.push(tensor),
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
        if self.tensors.len().is_multiple_of(SHARED_NAMES) {
            self.share_names(SHARED_NAMES);
        }
    }

    /// Moves the last `n` names into one text.
    fn share_names(&mut self, n: usize) {
        let first = self.tensors.len().saturating_sub(n);
        TensorName::share(self.tensors[first..].iter_mut().map(|(info, _)| &mut info.name));
    }

    /// Parses a whole document as a header.
    fn of_json<'de, R: Read<'de>>(
        mut json: serde_json::Deserializer<R>,
        n_header: u64,
    ) -> serde_json::Result<RawHeader> {
        let mut raw = OfBytes(n_header).deserialize(&mut json)?;
        raw.share_names(raw.tensors.len() % SHARED_NAMES);
        json.end().map(|()| raw)
    }

    /// Parses a header entry by entry; `None` if it is invalid, or if an entry is longer than the window.
    fn of_window(json: &mut Window<JsonBytes>, n_header: u64) -> Option<Self> {
        let (mut raw, mut has_metadata) = (Self::with_room_for(n_header), false);
        json.for_each_entry(|json, key| {
            if key != METADATA {
                raw.push(key, json.value()?);
                return Some(());
            }
            if std::mem::replace(&mut has_metadata, true) {
                return None;
            }
            json.for_each_entry(|json, key| {
                let is_full = raw.metadata.len() == limits::MAX_METADATA;
                match raw.metadata.entry(key) {
                    Entry::Vacant(place) if !is_full => place.insert(json.value()?),
                    _ => return None,
                };
                Some(())
            })
        })?;
        raw.share_names(raw.tensors.len() % SHARED_NAMES);
        json.is_at_end().then_some(raw)
    }
}

/// Deserializes a header of this many bytes of JSON.
struct OfBytes(u64);

impl<'de> DeserializeSeed<'de> for OfBytes {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OfBytes {
    type Value = RawHeader;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let (mut raw, mut has_metadata) = (RawHeader::with_room_for(self.0), false);
        while let Some(key) = map.next_key::<String>()? {
            if key != METADATA {
                raw.push(key, map.next_value()?);
                continue;
            }
            if std::mem::replace(&mut has_metadata, true) {
                return Err(serde::de::Error::custom(format!("key {key:?} occurs twice")));
            }
            raw.metadata = map.next_value::<MetadataStrings>()?.0;
        }
        Ok(raw)
    }
}

/// Returns the tensor and the start of its data.
pub(super) fn checked_tensor(name: String, raw: RawTensor, shapes: &mut SharedShapes) -> Result<(TensorInfo, u64)> {
    let dtype = raw.dtype.0.map_err(|dtype| {
        let message = format!("found unknown type {dtype:?}; a newer briquette may support it");
        Error::input(message).at(format_args!("tensor {name:?}"))
    })?;
    let (start, end) = raw.data_offsets;
    let info = TensorInfo::with_shape(name.into(), dtype, shapes.of(raw.shape))?;
    if end.checked_sub(start) == Some(info.n_bytes() as u64) {
        return Ok((info, start));
    }
    let message = format!(
        "found bytes {start}..{end}, expected {} bytes for {} {}; the file is damaged",
        info.n_bytes(),
        info.dtype,
        info.shape
    );
    Err(Error::input(message).at(format_args!("tensor {:?}", info.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a header with a window of `n_window` bytes and with the bytewise reader.
    fn both(json: &str, n_window: usize) -> (Option<RawHeader>, serde_json::Result<RawHeader>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("header");
        std::fs::write(&path, json).unwrap();
        let (file, bytes) = (InputFile::open(&path).unwrap(), 0..json.len() as u64);
        let mut window = Window::new(JsonBytes::new(&file, &bytes), n_window);
        let raw = RawHeader::of_window(&mut window, bytes.end);
        (raw, RawHeader::of_json(serde_json::Deserializer::from_reader(json.as_bytes()), bytes.end))
    }

    #[test]
    fn a_window_of_any_length_sees_the_same_header() {
        let entry = |name: &str| format!("{name:?} :\n{{\"dtype\":\"F32\",\"shape\":[2, 3],\"data_offsets\":[0,24]}}");
        let strings = r#""__metadata__":{"format":"pt","é\n\"":"\u00e9 {}[],:"}"#;
        let headers = [
            "{}".into(),
            " { } \n".into(),
            format!("{{{}}}", entry("a")),
            format!("{{{} , {strings},{}}}  ", entry("层.0"), entry("b\\\"{")),
            format!("{{{strings}}}"),
            r#"{"__metadata__":{}}"#.into(),
            format!("{{{}}}", [entry("a"), entry("b").replace("F32", "F31"), entry("c").replace("24", "23")].join(",")),
        ];
        for json in headers {
            let longest = json.len();
            for n_window in [1, 2, 16, 70, 71, 80, 100, longest, longest + 1] {
                let (windowed, bytewise) = both(&json, n_window);
                let (bytewise, is_long) = (bytewise.unwrap(), n_window < 100 && n_window < longest);
                let Some(windowed) = windowed else {
                    assert!(is_long, "{json} by {n_window}");
                    continue;
                };
                assert_eq!(
                    (&windowed.tensors, &windowed.metadata),
                    (&bytewise.tensors, &bytewise.metadata),
                    "{json} by {n_window}"
                );
                let [windowed, bytewise] =
                    [&windowed, &bytewise].map(|raw| raw.failed.as_ref().map(|error| error.to_string()));
                assert_eq!(windowed, bytewise, "{json} by {n_window}");
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused_in_a_window() {
        let entry = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let whole = format!(r#"{{"__metadata__":{{"k":"v","l":"w"}},{entry}}}"#);
        let mut wrong: Vec<String> = (0..whole.len()).map(|n| whole[..n].to_string()).collect();
        wrong.extend(["x", ",", "{}", "}", "\"a\""].map(|more| format!("{whole}{more}")));
        wrong.extend([
            format!("{{{entry},}}"),
            format!("{{,{entry}}}"),
            format!("{{{entry} {entry}}}"),
            format!("[{entry}]"),
            whole.replace("\"k\"", "\"l\""),
            whole.replace("\"v\"", "1"),
            whole.replace(entry, r#""__metadata__":{}"#),
            whole.replace("F32\"", "F32\",\"x\":1"),
            whole.replace("[1]", "[-1]"),
            whole.replace("\"F32\"", "3"),
            whole.replace(":{\"dtype", "{\"dtype"),
        ]);
        for json in wrong {
            let (windowed, bytewise) = both(&json, 1 << 10);
            assert!(windowed.is_none() && bytewise.is_err(), "{json}");
        }
    }
}
