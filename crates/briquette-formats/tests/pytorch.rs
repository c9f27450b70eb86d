//! PyTorch archives hold the same tensors as safetensors, and run nothing.

#![allow(clippy::unwrap_used)]

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

/// A zip archive of stored entries without checksums.
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let (start, n_name, n_bytes) = (file.len() as u32, name.len() as u16, bytes.len() as u32);
        let sizes = [[0; 4], n_bytes.to_le_bytes(), n_bytes.to_le_bytes()].concat();
        file.extend([b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0", sizes.as_slice(), &n_name.to_le_bytes(), &[0; 2]].concat());
        file.extend([name.as_bytes(), bytes].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0", sizes.as_slice(), &n_name.to_le_bytes()].concat());
        directory.extend([&[0; 12][..], &start.to_le_bytes(), name.as_bytes()].concat());
    }
    let (n, start, n_directory) = (entries.len() as u16, file.len() as u32, directory.len() as u32);
    let counts = [n.to_le_bytes(), n.to_le_bytes()].concat();
    file.extend(directory);
    file.extend(
        [b"PK\x05\x06\0\0\0\0", counts.as_slice(), &n_directory.to_le_bytes(), &start.to_le_bytes(), &[0; 2]].concat(),
    );
    file
}

fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, briquette_core::Error> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.pt"), bytes).unwrap();
    Checkpoint::open(&dir.path().join("m.pt"))
}

/// A pickle of one dictionary with these items.
fn dict(items: &[u8]) -> Vec<u8> {
    [b"\x80\x02}(", items, b"u."].concat()
}

/// A key and a tensor of two f32 in storage 0, from an element with a step.
fn item(name: &str, offset: u8, step: u8) -> Vec<u8> {
    let key = [b"X", (name.len() as u32).to_le_bytes().as_slice(), name.as_bytes()].concat();
    let storage = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ";
    let view = [b'K', offset, b'K', 2, 0x85, b'K', step, 0x85, 0x89];
    [key.as_slice(), storage, &view, b"ccollections\nOrderedDict\n)RtR"].concat()
}

#[test]
fn archives_that_lie_are_refused() {
    let good = dict(&item("a", 0, 1));
    let data: (&str, &[u8]) = ("m/data/0", &[0; 8]);
    assert_eq!(open_bytes(&zip(&[("m/data.pkl", &good), data])).unwrap().tensors().len(), 1);
    let nested = [b"X\x01\0\0\0a}(".as_slice(), &item("b", 0, 1), b"u", &item("a.b", 0, 1)].concat();
    let cases: [(Vec<u8>, &str); 12] = [
        (zip(&[("m/data.pkl", &good), data, ("n/x", b"")]), "one root"),
        (zip(&[("data.pkl", &good)]), "one root"),
        (zip(&[("m/data.pkl", &good), data, data]), "twice"),
        (zip(&[("m/data.pkl", &good)]), "storage \"m/data/0\" is missing"),
        (zip(&[("m/data.pkl", &good), ("m/data/0", &[0; 7])]), "does not fit"),
        (zip(&[("m/data.pkl", &dict(&item("a", 1, 1))), data]), "does not fit"),
        (zip(&[("m/data.pkl", &dict(&item("a", 0, 2))), data]), "does not fit"),
        (zip(&[("m/data.pkl", &good), data, ("m/constants.pkl", b"")]), "TorchScript"),
        (zip(&[("m/data.pkl", &dict(&nested)), data]), "one name"),
        (zip(&[("m/data.pkl", &dict(b"")), data]), "no tensor"),
        (zip(&[("m/data.pkl", b"\x80\x04\x8c\x05posix\x8c\x06system\x93."), data]), "posix.system"),
        (zip(&[("m/data.pkl", b"\x80\x02(iposix\nsystem\n."), data]), "opcode 0x69"),
    ];
    for (bytes, phrase) in cases {
        let error = open_bytes(&bytes).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}
