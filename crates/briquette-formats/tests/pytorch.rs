//! PyTorch archives hold the same tensors as safetensors, and run nothing.

use briquette_core::ErrorKind;
use briquette_formats::{Checkpoint, Format, TensorSource};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Type, shape and bytes of each tensor, by name; read whole and in two halves.
fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
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
        found.insert(info.name.clone(), (format!("{} {}", info.dtype, info.shape), bytes));
    }
    checkpoint.check_unchanged().unwrap();
    found
}

#[test]
fn archives_hold_the_same_tensors_as_safetensors() {
    assert_eq!(Checkpoint::open(&fixture("digits.pt")).unwrap().format(), Format::PyTorch);
    assert_eq!(tensors(&fixture("digits.pt")), tensors(&fixture("digits")));
    for name in ["strided", "tied", "nested", "half"] {
        let expected = tensors(&fixture(&format!("pt/{name}.expected.safetensors")));
        assert_eq!(tensors(&fixture(&format!("pt/{name}.pt"))), expected, "{name}");
    }
}

#[test]
fn a_contiguous_tensor_is_read_in_ranges_and_a_strided_one_is_not() {
    let checkpoint = Checkpoint::open(&fixture("pt/strided.pt")).unwrap();
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let is_strided = ["transposed.weight", "columns.weight"].contains(&info.name.as_str());
        assert_eq!(checkpoint.reads_ranges(index), !is_strided, "{}", info.name);
    }
}

#[test]
fn a_pickle_that_would_run_a_command_is_refused() {
    let error = Checkpoint::open(&fixture("pt/evil.pt")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Input);
    assert!(error.to_string().contains("posix.system"), "{error}");
    for directory in [Path::new("."), &fixture(""), &fixture("pt")] {
        assert!(!directory.join("briquette-was-here").exists());
    }
}

#[test]
fn each_prefix_of_an_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for name in ["pt/strided.pt", "digits.pt"] {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let stride = (bytes.len() / 500).max(1);
        let ends = bytes.len().saturating_sub(200)..bytes.len();
        for n in (0..bytes.len()).step_by(stride).chain(ends) {
            std::fs::write(&path, &bytes[..n]).unwrap();
            let error = Checkpoint::open(&path).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Input, "{n} bytes of {name}: {error}");
        }
    }
}

#[test]
fn flipped_bytes_of_the_directory_and_the_pickle_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let bytes = std::fs::read(fixture("pt/nested.pt")).unwrap();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            std::fs::write(&path, &changed).unwrap();
            if let Ok(checkpoint) = Checkpoint::open(&path) {
                for (index, info) in checkpoint.tensors().iter().enumerate() {
                    let _ = checkpoint.read(index, 0, &mut vec![0; info.n_bytes()]);
                }
            }
        }
    }
}

#[test]
fn other_things_of_pytorch_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.bin");
    let mut tar = vec![b'x'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    for (bytes, phrase) in [(&b"\x80\x02}q\x00."[..], "before 1.6"), (&tar, "before 1.6"), (b"PK\x03\x04", "cut short")]
    {
        std::fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{error}");
    }
}
