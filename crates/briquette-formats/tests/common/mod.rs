//! Helpers for the tests of readers.

use briquette_formats::{Checkpoint, TensorSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the path of a file or directory in `fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Reads type, shape and bytes of each tensor by name; checks that reading in two halves gives the same bytes.
pub(crate) fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut found = BTreeMap::new();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        let (mut halves, middle) = (vec![0; bytes.len()], bytes.len() / 2);
        let (first, second) = halves.split_at_mut(middle);
        checkpoint.read(index, 0, first).unwrap();
        checkpoint.read(index, middle, second).unwrap();
        assert_eq!(bytes, halves, "{}", info.name);
        found.insert(info.name.to_string(), (format!("{} {}", info.dtype, info.shape), bytes));
    }
    checkpoint.check_unchanged().unwrap();
    found
}
