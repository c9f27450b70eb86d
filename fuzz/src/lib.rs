//! Helpers of the fuzz targets: a directory built from one input, and a reader that checks everything.

#[path = "../../crates/briquette-formats/tests/archives/mod.rs"]
mod archives;

pub use archives::{tar, zip};
use briquette::formats::{Checkpoint, TensorSource};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The separator between the files of one input.
const SEPARATOR: &[u8] = b"\n\x00--\n";
/// Largest ratio of the bytes of tensors to the bytes of files. For 2-bit codes of F64 tensors it is 32.
const MAX_GROWTH: u64 = 64;

/// The directory for the inputs of a process, in memory if possible. The next process removes it.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
    let path = parent.join(format!("briquette-fuzz-{}", std::process::id()));
    remove_old(&parent);
    std::fs::create_dir_all(&path).expect("can create the directory for inputs");
    path
});

/// Removes the directories of processes that have ended.
fn remove_old(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.strip_prefix("briquette-fuzz-").is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns a path in the directory of this process.
pub fn place(name: &str) -> PathBuf {
    DIRECTORY.join(name)
}

/// Writes one file and returns its path.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = place(name);
    std::fs::write(&path, bytes).expect("can write the file of an input");
    path
}

/// Writes the files of an input under these names, and removes files that the input lacks. Returns their directory.
pub fn files(names: &[&str], input: &[u8]) -> PathBuf {
    let mut rest = Some(input);
    for name in names {
        match rest {
            Some(bytes) => {
                let at = bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
                file(name, at.map_or(bytes, |at| &bytes[..at]));
                rest = at.map(|at| &bytes[at + SEPARATOR.len()..]);
            }
            None => drop(std::fs::remove_file(place(name))),
        }
    }
    DIRECTORY.clone()
}

/// Returns the parts of an input. Missing parts are empty.
pub fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut rest = input;
    std::array::from_fn(|_| {
        let at = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        let (part, after) = at.map_or((rest, &[][..]), |at| (&rest[..at], &rest[at + SEPARATOR.len()..]));
        rest = after;
        part
    })
}

/// Opens a model and reads every tensor, whole and in two ranges, which must agree.
///
/// # Panics
/// If a tensor is far larger than the files, reads differently the second time, or an error is not of a damaged file.
pub fn open_and_read(path: &Path) {
    let Ok(checkpoint) = Checkpoint::open(path) else { return };
    let limit = checkpoint.weight_bytes() * MAX_GROWTH;
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        assert!(info.n_bytes() as u64 <= limit, "{} {} out of {limit} bytes", info.dtype, info.shape);
        let mut whole = vec![0; info.n_bytes()];
        let read = checkpoint.read(index, 0, &mut whole);
        let mut halves = vec![0; whole.len()];
        let (first, second) = halves.split_at_mut(whole.len() / 2);
        let again = checkpoint.read(index, 0, first).and_then(|()| checkpoint.read(index, whole.len() / 2, second));
        if read.is_ok() {
            again.expect("a tensor that was read as a whole can be read in parts");
            assert_eq!(whole, halves, "{}", info.name);
        }
    }
    // The checksums of all values are compared at the end.
    if let Err(error) = checkpoint.check_unchanged() {
        assert!(error.exit_code() == 4 && !error.message.contains("was changed while being read"), "{error}");
    }
}
