//! `SHA256SUMS`: the file that `sha256sum -c` reads.

use crate::{InputFile, limits};
use briquette_core::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The name of the file in a directory.
pub const FILE_NAME: &str = "SHA256SUMS";
const BUFFER: usize = 1 << 20;

/// SHA-256 of a file, as 64 hexadecimal digits.
///
/// # Errors
/// As [`InputFile::read_at`].
pub fn sha256_of(file: &InputFile) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER.min(file.len() as usize)];
    let mut offset = 0;
    while offset < file.len() {
        let n = (file.len() - offset).min(BUFFER as u64) as usize;
        file.read_at(offset, &mut buffer[..n])?;
        hasher.update(&buffer[..n]);
        offset += n as u64;
    }
    Ok(hex(&hasher.finalize()))
}

/// SHA-256 of bytes, as 64 hexadecimal digits.
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines of the file: digest, two spaces, relative path.
pub fn to_lines(sums: &BTreeMap<String, String>) -> String {
    sums.iter().map(|(path, sum)| format!("{sum}  {path}\n")).collect()
}

/// Reads the lines back.
///
/// # Errors
/// Input where a line is not one.
pub fn read(file: &InputFile) -> Result<BTreeMap<String, String>> {
    let bytes = file.read_all(limits::MAX_JSON_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let parts = line.split_once("  ").filter(|(sum, path)| {
            sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()) && crate::index::stays_inside(path)
        });
        let Some((sum, path)) = parts else {
            return Err(Error::input(format!("line {line:?} is not a digest and a path; it is damaged"))
                .at(file.path().display()));
        };
        if sums.insert(path.to_string(), sum.to_string()).is_some() {
            return Err(Error::input(format!("{path:?} comes twice; it is damaged")).at(file.path().display()));
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_published_ones_and_lines_read_back() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256_of_bytes(b""), empty);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sums");
        let sums = BTreeMap::from([("a b".to_string(), empty.to_string()), ("d/c".into(), empty.into())]);
        std::fs::write(&path, to_lines(&sums)).unwrap();
        assert_eq!(read(&InputFile::open(&path).unwrap()).unwrap(), sums);
        for bad in ["x", "e3b0  a", &format!("{empty}  ../a"), &format!("{empty}  a\n{empty}  a")] {
            std::fs::write(&path, bad).unwrap();
            assert!(read(&InputFile::open(&path).unwrap()).is_err(), "{bad}");
        }
    }
}
