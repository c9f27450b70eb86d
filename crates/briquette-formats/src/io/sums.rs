//! `SHA256SUMS`: a file in the format of `sha256sum -c`.

use crate::io::draft::{MARK, target_of_draft};
use crate::io::paths::stays_inside;
use crate::io::{InputFile, limits};
use briquette_core::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// The name of the file in a directory.
pub const FILE_NAME: &str = "SHA256SUMS";
/// The name of the file with the training metrics, one JSON object per line.
pub const METRICS: &str = "metrics.jsonl";
const BUFFER: usize = 1 << 20;

/// Returns the SHA-256 of a file, as 64 hexadecimal digits.
///
/// `check_stop` runs after every MiB, as a file may take minutes. With `ahead`, another thread reads the file
/// while this thread computes.
///
/// # Errors
/// Errors of [`InputFile::read_at`] and of `check_stop`.
pub fn sha256_of(file: &InputFile, ahead: bool, check_stop: &dyn Fn() -> Result<()>) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut update = |bytes: &[u8]| {
        hasher.update(bytes);
        check_stop()
    };
    if ahead && file.len() > BUFFER as u64 {
        read_ahead(file, &mut update)?;
    } else {
        let mut buffer = Vec::new();
        for offset in (0..file.len()).step_by(BUFFER) {
            fill(&mut buffer, file, offset)?;
            update(&buffer)?;
        }
    }
    Ok(hex(&hasher.finalize()))
}

/// Passes a file to `each` in pieces. Another thread reads up to two pieces ahead.
fn read_ahead(file: &InputFile, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (give, take) = mpsc::sync_channel(2);
    let (give_back, used) = mpsc::channel::<Vec<u8>>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for offset in (0..file.len()).step_by(BUFFER) {
                let mut buffer = used.try_recv().unwrap_or_default();
                let filled = fill(&mut buffer, file, offset).map(|()| buffer);
                // The receiver is gone, so it has failed and the rest is not needed.
                if give.send(filled).is_err() {
                    return;
                }
            }
        });
        for filled in take {
            let buffer = filled?;
            each(&buffer)?;
            let _ = give_back.send(buffer);
        }
        Ok(())
    })
}

/// Reads the next piece of a file.
fn fill(buffer: &mut Vec<u8>, file: &InputFile, offset: u64) -> Result<()> {
    buffer.resize((file.len() - offset).min(BUFFER as u64) as usize, 0);
    file.read_at(offset, buffer)
}

/// SHA-256 of bytes that arrive in pieces.
#[derive(Debug, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the sum as 64 hexadecimal digits.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Returns the SHA-256 of bytes, as 64 hexadecimal digits.
pub fn sha256_of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the lines of the file: digest, two spaces, relative path.
pub fn to_lines(sums: &BTreeMap<String, String>) -> String {
    sums.iter().map(|(path, sum)| format!("{sum}  {path}\n")).collect()
}

/// Reads `SHA256SUMS`: digests by path.
///
/// # Errors
/// Input: the file is not text, a line is malformed, or a path is repeated.
pub fn read(file: &InputFile) -> Result<BTreeMap<String, String>> {
    let bytes = file.read_all(limits::MAX_SMALL_BYTES)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Error::input("is not text; it is damaged").at(file.path().display()))?;
    let mut sums = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let parts = line.split_once("  ").filter(|(sum, path)| {
            sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()) && stays_inside(path)
        });
        let Some((sum, path)) = parts else {
            let message = format!("line {} is not a digest and a path; it is damaged", i + 1);
            return Err(Error::input(message).at(file.path().display()));
        };
        if sums.insert(path.to_string(), sum.to_string()).is_some() {
            return Err(Error::input(format!("{path:?} is listed twice; it is damaged")).at(file.path().display()));
        }
    }
    Ok(sums)
}

/// Returns the error for a file with a wrong SHA-256.
pub fn differs(found: &str, expected: &str) -> Error {
    Error::input(format!("found SHA-256 {found}, expected {expected}; the file was changed, make the output again"))
}

/// Returns whether a file has no line in `SHA256SUMS`: the sums, reports and metrics.
///
/// Reports and metrics may differ between two runs of one recipe. A killed writer of a report leaves its draft.
pub fn is_uncovered(name: &str) -> bool {
    let is_one = |name: &str| ["report.json", "report.html", METRICS, FILE_NAME, MARK].contains(&name);
    match name.split_once('/') {
        Some((draft, name)) => target_of_draft(draft).is_some_and(|of| is_one(of) && (name == of || name == MARK)),
        None => is_one(name),
    }
}

/// Returns every file of a directory as a relative path, in order.
///
/// # Errors
/// Io: a directory cannot be listed.
pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(directory, Path::new(""), &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let directory = root.join(below);
    let entries = std::fs::read_dir(&directory).map_err(|source| Error::io("cannot list", &directory, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("cannot list", &directory, source))?;
        let relative = below.join(entry.file_name());
        let kind = entry.file_type().map_err(|source| Error::io("cannot access", &entry.path(), source))?;
        if kind.is_dir() {
            collect(root, &relative, found)?;
        } else {
            found.push(relative);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_large_file_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        for ahead in [false, true] {
            let n_calls = std::cell::Cell::new(0);
            let check_stop = || {
                n_calls.set(n_calls.get() + 1);
                if n_calls.get() < 3 { Ok(()) } else { Err(Error::interrupted(2)) }
            };
            let error = sha256_of(&InputFile::open(&path).unwrap(), ahead, &check_stop).unwrap_err();
            assert_eq!((error.exit_code(), n_calls.get()), (130, 3));
        }
    }

    #[test]
    fn reading_ahead_gives_the_same_sum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for n in [0, 1, BUFFER, BUFFER + 1, 5 * BUFFER + 77] {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 31 % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = InputFile::open(&path).unwrap();
            let [plain, ahead] = [false, true].map(|ahead| sha256_of(&file, ahead, &|| Ok(())).unwrap());
            assert_eq!((&plain, &ahead), (&sha256_of_bytes(&bytes), &plain), "{n}");
            // Open the file again, so that no bytes come from the read-ahead buffer.
            let file = InputFile::open(&path).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(n as u64 / 2).unwrap();
            let error = |ahead| sha256_of(&file, ahead, &|| Ok(())).err().map(|error| error.to_string());
            assert_eq!((error(true), error(false).is_some()), (error(false), n > 0));
        }
    }

    #[test]
    fn digests_match_published_ones_and_lines_read_back() {
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
