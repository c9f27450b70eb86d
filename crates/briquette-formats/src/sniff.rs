//! Detects the format of a file from its first bytes. The name does not matter.

use crate::InputFile;
use briquette_core::{Error, Result};

/// A supported format, as detected from the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// safetensors.
    Safetensors,
    /// PyTorch: a zip archive, a tar archive or pickles.
    PyTorch,
    /// burn's burnpack.
    Burnpack,
    /// ONNX.
    Onnx,
}

/// Detects the format of a file. For common wrong files, the error says what they are.
///
/// # Errors
/// Input: the format is not supported.
pub fn kind_of(file: &InputFile) -> Result<FileKind> {
    let mut head = vec![0; file.len().min(512) as usize];
    file.read_at(0, &mut head)?;
    kind_of_head(&head).map_err(|message| Error::input(message).at(file.path().display()))
}

fn kind_of_head(head: &[u8]) -> Result<FileKind, String> {
    let wrong = |found: &str, todo: &str| Err(format!("found {found}, expected a checkpoint; {todo}"));
    let text = String::from_utf8_lossy(head).trim_start().to_lowercase();
    let length = head.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    if head.is_empty() {
        wrong("an empty file", "download or save it again")
    } else if head.starts_with(b"version https://git-lfs") {
        wrong("a git-lfs pointer", "run `git lfs pull` to get the file it points to")
    } else if text.starts_with("<!doctype html") || text.starts_with("<html") {
        wrong("a web page", "the download failed or needs a login; get the file itself")
    } else if head.starts_with(b"GGUF") {
        wrong("a GGUF file", "GGUF is not supported; use the safetensors file it was made from")
    } else if head.starts_with(&[0x4e, 0x52, 0x55, 0x42]) {
        Ok(FileKind::Burnpack)
    } else if head.get(8) == Some(&b'{') && length.is_some_and(|length| length <= crate::limits::MAX_HEADER_BYTES) {
        Ok(FileKind::Safetensors)
    } else if head.starts_with(b"PK") || head.get(257..262) == Some(b"ustar") || is_pickle(head) {
        Ok(FileKind::PyTorch)
    } else if is_onnx(head) {
        Ok(FileKind::Onnx)
    } else if let Some((_, what, todo)) = OTHERS.iter().find(|(start, ..)| head.starts_with(start)) {
        wrong(what, todo)
    } else if head.get(4..8) == Some(b"TFL3") {
        wrong("a TensorFlow Lite file", "TensorFlow Lite is not supported; use the checkpoint it was converted from")
    } else if text.starts_with('{') {
        wrong("JSON", "give its directory or a weight file")
    } else if head.iter().all(|&byte| byte == 0) {
        wrong("a file that starts with zeros", "it was not written completely; download or save it again")
    } else {
        wrong("an unknown format", "use a safetensors, PyTorch, burnpack or ONNX file")
    }
}

/// Other files that are mistaken for checkpoints, by their first bytes.
const OTHERS: [(&[u8], &str, &str); 6] = [
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "HDF5 is not supported; save the weights as safetensors"),
    (b"\x93NUMPY", "a NumPy array", "a model has several arrays; save them as safetensors"),
    (b"\x1f\x8b", "a gzip file", "unpack it and use the files inside"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z file", "unpack it and use the files inside"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it and use the files inside"),
    (b"\xfd7zXZ\0", "an xz file", "unpack it and use the files inside"),
];

/// Returns whether a protobuf begins like `ModelProto`: the version of its format, then another of its fields. Fields after the
/// 15th have tags of two bytes.
fn is_onnx(head: &[u8]) -> bool {
    let has_short_tag = matches!(head, [0x08, 1..=31, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42 | 0x72, ..]);
    has_short_tag || matches!(head, [0x08, 1..=31, 0xa2 | 0xca | 0xd2, 0x01, ..])
}

fn is_pickle(head: &[u8]) -> bool {
    head.first() == Some(&0x80) && head.get(1).is_some_and(|protocol| (1..=5).contains(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_wrong_files_are_recognized() {
        let cases: [(&[u8], &str); 11] = [
            (b"", "empty"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"  <!DOCTYPE html><html>", "web page"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"\x89HDF\r\n\x1a\n\0\0", "HDF5"),
            (b"\x1f\x8b\x08\0", "gzip"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (b" {\"version\": \"1.0\"}", "JSON"),
            (&[0; 64], "zeros"),
            (b"hello world", "unknown format"),
            (&[0xff; 64], "unknown format"),
        ];
        for (head, expected) in cases {
            let message = kind_of_head(head).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_short_safetensors_header_is_not_a_pickle() {
        assert_eq!(kind_of_head(b"\x80\x02\0\0\0\0\0\0{\"a\":"), Ok(FileKind::Safetensors));
        assert_eq!(kind_of_head(b"\x80\x02}q\0."), Ok(FileKind::PyTorch));
        assert_eq!(kind_of_head(b"PK\x03\x04"), Ok(FileKind::PyTorch));
        assert_eq!(kind_of_head(b"NRUB\x01\0"), Ok(FileKind::Burnpack));
        assert_eq!(kind_of_head(b"\x08\x08\x12\x07pytorch\x1a\x052.3.1"), Ok(FileKind::Onnx));
        assert_eq!(kind_of_head(b"\x08\x0a:\x80\x02\x0a\x41"), Ok(FileKind::Onnx));
        assert_eq!(kind_of_head(b"\x08\x08\xca\x01\x0a\x0a\x05Dense"), Ok(FileKind::Onnx), "functions come first");
    }
}
