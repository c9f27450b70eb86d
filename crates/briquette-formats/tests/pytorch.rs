//! PyTorch archives have the same tensors as safetensors, and no code runs.

#![allow(clippy::unwrap_used)]

mod archives;
mod common;
mod files;

use archives::{How, dict, item, zip, zip_as};
use briquette_core::ErrorKind;
use briquette_formats::{Checkpoint, InputFormat, TensorSource};
use common::{fixture, tensors};
use files::replace;
use std::path::Path;

#[test]
fn archives_have_the_same_tensors_as_safetensors() {
    assert_eq!(Checkpoint::open(&fixture("digits.pt")).unwrap().format(), InputFormat::PyTorch);
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
fn a_view_that_negates_its_storage_is_refused() {
    let error = Checkpoint::open(&fixture("pt/negative.pt")).unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.message.contains("save tensor.resolve_neg()"), "{error}");
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
            replace(&path, &bytes[..n]);
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
            replace(&path, &changed);
            if let Ok(checkpoint) = Checkpoint::open(&path) {
                for (index, info) in checkpoint.tensors().iter().enumerate() {
                    let _ = checkpoint.read(index, 0, &mut vec![0; info.n_bytes()]);
                }
            }
        }
    }
}

#[test]
fn other_pytorch_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.bin");
    let mut tar = vec![b'x'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let cases =
        [(&b"\x80\x02}q\x00."[..], "torch.save did not write"), (&tar, "tar header"), (b"PK\x03\x04", "cut short")];
    for (bytes, phrase) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{error}");
    }
}

fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, briquette_core::Error> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.pt"), bytes).unwrap();
    Checkpoint::open(&dir.path().join("m.pt"))
}

#[test]
fn false_archives_are_refused() {
    let good = dict(&item("a", 0, 1));
    let data: (&str, &[u8]) = ("m/data/0", &[0; 8]);
    assert_eq!(open_bytes(&zip(&[("m/data.pkl", &good), data])).unwrap().tensors().len(), 1);
    let nested = [b"X\x01\0\0\0a}(".as_slice(), &item("b", 0, 1), b"u", &item("a.b", 0, 1)].concat();
    let cases: [(Vec<u8>, &str); 11] = [
        (zip(&[("m/data.pkl", &good), data, ("n/x", b"")]), "one root"),
        (zip(&[("data.pkl", &good)]), "one root"),
        (zip(&[("m/data.pkl", &good), data, data]), "twice"),
        (zip(&[("m/data.pkl", &good)]), "storage \"m/data/0\" is missing"),
        (zip(&[("m/data.pkl", &good), ("m/data/0", &[0; 7])]), "does not fit"),
        (zip(&[("m/data.pkl", &dict(&item("a", 1, 1))), data]), "does not fit"),
        (zip(&[("m/data.pkl", &dict(&item("a", 0, 2))), data]), "does not fit"),
        (zip(&[("m/data.pkl", &dict(&nested)), data]), "this name"),
        (zip(&[("m/data.pkl", &dict(b"")), data]), "no tensor"),
        (zip(&[("m/data.pkl", b"\x80\x04\x8c\x05posix\x8c\x06system\x93."), data]), "posix.system"),
        (zip(&[("m/data.pkl", b"\x80\x02(iposix\nsystem\n."), data]), "opcode 0x69"),
    ];
    for (bytes, phrase) in cases {
        let error = open_bytes(&bytes).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}

/// A tensor of two f32, with deflated entries or sizes in 64-bit fields.
#[test]
fn deflated_entries_and_zip64_archives_are_read() {
    let (pickle, data) = (dict(&item("a", 0, 1)), [1.5_f32, -2.0].map(f32::to_le_bytes).concat());
    let entries: [(&str, &[u8]); 2] = [("m/data.pkl", &pickle), ("m/data/0", &data)];
    let dir = tempfile::tempdir().unwrap();
    for (deflated, is_wide) in [(&[][..], true), (&["m/data/0"], false), (&["m/data/0", "m/data.pkl"], true)] {
        let path = dir.path().join("m.pt");
        let bytes = zip_as(How { deflated, is_wide }, &entries);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(tensors(&path)["a"], ("F32 [2]".to_string(), data.clone()), "{deflated:?} {is_wide}");
        for n in 0..bytes.len() {
            assert_eq!(open_bytes(&bytes[..n]).unwrap_err().kind, ErrorKind::Input, "{n} bytes");
        }
    }
}

#[test]
fn a_damaged_deflated_storage_is_refused() {
    let (pickle, data) = (dict(&item("a", 0, 1)), [7; 8]);
    let mut bytes =
        zip_as(How { deflated: &["m/data/0"], is_wide: false }, &[("m/data.pkl", &pickle), ("m/data/0", &data)]);
    let at = bytes.windows(8).position(|window| window == data).unwrap();
    bytes[at] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.pt"), &bytes).unwrap();
    let checkpoint = Checkpoint::open(&dir.path().join("m.pt")).unwrap();
    let error = checkpoint.read(0, 0, &mut [0; 8]).unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.to_string().contains("damaged"), "{error}");
}

/// Shards of two tensors each, as written by `save_pretrained` without safetensors.
#[test]
fn sharded_bin_files_are_read_through_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    let shard = |names: [&str; 2], data: [f32; 2]| {
        let pickle = dict(&[item(names[0], 0, 1), item(names[1], 0, 1)].concat());
        zip(&[("m/data.pkl", &pickle), ("m/data/0", &data.map(f32::to_le_bytes).concat())])
    };
    write("pytorch_model-00001-of-00002.bin", &shard(["a", "b"], [1.0, 2.0]));
    write("pytorch_model-00002-of-00002.bin", &shard(["c", "d"], [3.0, 4.0]));
    let index = |d: &str| {
        format!(
            r#"{{"metadata":{{"total_size":32}},"weight_map":{{"a":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00001-of-00002.bin","c":"pytorch_model-00002-of-00002.bin","{d}":"pytorch_model-00002-of-00002.bin"}}}}"#
        )
    };
    write("pytorch_model.bin.index.json", index("d").as_bytes());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(
        (checkpoint.format(), checkpoint.tensors().len(), checkpoint.files().len()),
        (InputFormat::PyTorch, 4, 2)
    );
    let found = tensors(dir.path());
    assert_eq!(found["b"].1, [1.0_f32, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!(found["c"].1, [3.0_f32, 4.0].map(f32::to_le_bytes).concat());
    assert_eq!(found, tensors(&dir.path().join("pytorch_model.bin.index.json")));
    write("pytorch_model.bin.index.json", index("e").as_bytes());
    assert!(Checkpoint::open(dir.path()).unwrap_err().to_string().contains("does not list"));
}
