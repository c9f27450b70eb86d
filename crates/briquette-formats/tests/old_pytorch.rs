//! All formats of PyTorch files have the same tensors as safetensors, and damaged ones give an error of one
//! line.

#![allow(clippy::unwrap_used)]

mod archives;
mod common;
mod files;

use archives::{How, dict, item, key, zip, zip_as};
use briquette_core::ErrorKind;
use briquette_formats::{Checkpoint, Choice, InputFormat, TensorSource};
use common::{fixture, tensors};
use files::replace;
use std::path::Path;

/// One file of each kind.
const FILES: [&str; 5] = ["legacy", "legacy-views", "tar", "packed", "script"];

fn pt(name: &str) -> std::path::PathBuf {
    fixture(&format!("pt/{name}"))
}

#[test]
fn each_format_has_the_same_tensors_as_its_safetensors_twin() {
    let twins = [
        ("legacy", "legacy"),
        ("legacy-views", "legacy-views"),
        ("tar", "legacy"),
        ("packed", "legacy"),
        ("script", "script"),
        ("float8", "float8"),
    ];
    for (name, twin) in twins {
        let path = pt(&format!("{name}.pt"));
        assert_eq!(Checkpoint::open(&path).unwrap().format(), InputFormat::PyTorch);
        assert_eq!(tensors(&path), tensors(&pt(&format!("{twin}.expected.safetensors"))), "{name}");
    }
}

#[test]
fn contiguous_tensors_of_old_files_are_read_in_ranges() {
    for (name, n_ranges) in [("legacy", 4), ("legacy-views", 2), ("tar", 4), ("packed", 0), ("script", 7)] {
        let checkpoint = Checkpoint::open(&pt(&format!("{name}.pt"))).unwrap();
        let n = (0..checkpoint.tensors().len()).filter(|&index| checkpoint.reads_ranges(index)).count();
        assert_eq!(n, n_ranges, "{name}");
    }
}

#[test]
fn the_code_of_a_program_is_not_part_of_the_model() {
    let checkpoint = Checkpoint::open(&pt("script.pt")).unwrap();
    let n_bytes: usize = checkpoint.tensors().iter().map(|info| info.n_bytes()).sum();
    assert_eq!(checkpoint.weight_bytes(), n_bytes as u64);
    let left: Vec<&str> = checkpoint.left_out().iter().map(|left| left.key.as_str()).collect();
    assert_eq!(left, ["code"]);
    // A part of the model, by the attributes on the path to it.
    let choice = Choice { key: Some("blocks.1".into()), ..Choice::default() };
    let part = Checkpoint::open_as(&pt("script.pt"), &choice).unwrap();
    let names: Vec<&str> = part.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["scale", "conv.weight", "conv.bias"]);
}

fn open_bytes(path: &Path, bytes: &[u8]) -> Result<Checkpoint, briquette_core::Error> {
    replace(path, bytes);
    Checkpoint::open(path)
}

fn read_all(checkpoint: &Checkpoint) -> Result<(), briquette_core::Error> {
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        checkpoint.read(index, 0, &mut vec![0; info.n_bytes()])?;
    }
    Ok(())
}

#[test]
fn each_prefix_of_an_old_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for name in FILES {
        let bytes = std::fs::read(pt(&format!("{name}.pt"))).unwrap();
        // A tar archive is padded with zeros. Bytes after the first block of zeros are ignored.
        let end = match name {
            "tar" => bytes.len() - bytes.iter().rev().take_while(|&&byte| byte == 0).count(),
            _ => bytes.len(),
        };
        for n in 0..end {
            let error = open_bytes(&path, &bytes[..n]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Input, "{n} bytes of {name}: {error}");
            assert!(!error.to_string().contains('\n'), "{n} bytes of {name}: {error}");
        }
    }
}

#[test]
fn flipped_bytes_of_an_old_file_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for name in FILES {
        let bytes = std::fs::read(pt(&format!("{name}.pt"))).unwrap();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                let found = open_bytes(&path, &changed).and_then(|checkpoint| read_all(&checkpoint));
                if let Err(error) = found {
                    let is_one_line = !error.to_string().contains('\n');
                    assert!(error.kind == ErrorKind::Input && is_one_line, "byte {at} of {name}: {error}");
                }
            }
        }
    }
}

/// Builds a file of PyTorch before 1.6 with one tensor, from the number of elements in the pickle and before
/// the data.
fn stream(view: &[u8], n_in_pickle: u8, n_in_file: u64, data: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    let info = [b"\x80\x02}".as_slice(), &key("little_endian"), b"\x88s."].concat();
    let storage = [
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK"
            .as_slice(),
        &[n_in_pickle],
        b"NtQ",
        view,
        b"\x89ccollections\nOrderedDict\n)RtR",
    ];
    let object = dict(&[key("a"), storage.concat()].concat());
    let keys = [b"\x80\x02]".as_slice(), &key("0"), b"a."].concat();
    [magic.as_slice(), &info, &object, &keys, &n_in_file.to_le_bytes(), data].concat()
}

#[test]
fn false_old_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let (view, data) = (b"K\0K\x02\x85K\x01\x85".as_slice(), [0; 8].as_slice());
    assert_eq!(open_bytes(&path, &stream(view, 2, 2, data)).unwrap().tensors().len(), 1);
    let good = stream(view, 2, 2, data);
    let with = |from: &[u8], to: &[u8]| {
        let at = good.windows(from.len()).position(|window| window == from).unwrap();
        [&good[..at], to, &good[at + from.len()..]].concat()
    };
    let cases: [(Vec<u8>, &str); 12] = [
        (stream(view, 2, 3, data), "another length"),
        (stream(view, 2, u64::MAX, data), "another length"),
        (stream(view, 200, 200, data), "reaches beyond its end"),
        (stream(b"K\x01K\x02\x85K\x01\x85", 2, 2, data), "does not fit"),
        (stream(b"K\0J\xff\xff\xff\x7f\x85K\x01\x85", 2, 2, data), "does not fit"),
        (stream(b"K\0J\xff\xff\xff\xff\x85K\x01\x85", 2, 2, data), "damaged"),
        (stream(view, 2, 2, &[0; 9]), "1 bytes after its last storage"),
        (with(b"\x88s.", b"\x89s."), "big-endian"),
        (with(b"M\xe9\x03", b"M\xe8\x03"), "another version"),
        (with(b"\x6c\xfc", b"\x6c\xfd"), "torch.save did not write"),
        (with(b"torch._utils\n_rebuild_tensor_v2", b"posix\nsystem"), "posix.system"),
        (with(b"\x80\x02]X\x01\0\0\x000a.", b"\x80\x02]."), "16 bytes after its last storage"),
    ];
    for (bytes, phrase) in cases {
        let error = open_bytes(&path, &bytes).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}

#[test]
fn a_false_tar_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let good = std::fs::read(pt("tar.pt")).unwrap();
    let at = |name: &[u8]| good.chunks(512).position(|block| block.starts_with(name)).unwrap() * 512;
    // A header with a valid checksum.
    let with_header = |start: usize, place: usize, to: &[u8]| {
        let mut bytes = good.clone();
        bytes[start + place..start + place + to.len()].copy_from_slice(to);
        bytes[start + 148..start + 156].copy_from_slice(b"        ");
        let sum: u32 = bytes[start..start + 512].iter().map(|&byte| u32::from(byte)).sum();
        bytes[start + 148..start + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    };
    let tensors = at(b"tensors\0");
    let mut rank = good.clone();
    let row = tensors + 512 + good[tensors + 512..].windows(4).position(|bytes| bytes == [2, 0, 0, 0]).unwrap();
    rank[row] = 65;
    let cases: [(Vec<u8>, &str); 6] = [
        (with_header(tensors, 124, b"77777777777\0"), "reaches beyond its end"),
        (with_header(tensors, 124, b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"), "bad tar header"),
        (with_header(tensors, 0, b"tensorz"), "without \"tensors\""),
        (with_header(tensors, 0, b"pickle\0"), "two entries \"pickle\""),
        (with_header(tensors, 124, b"zzzzzzzzzzz\0"), "bad tar header"),
        (rank, "bad table of tensors"),
    ];
    for (bytes, phrase) in cases {
        let error = open_bytes(&path, &bytes).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    }
}

/// Classes of `__torch__` are allowed in programs only, and `posix.system` never.
#[test]
fn classes_are_allowed_in_programs_only_and_never_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let object = [b"\x80\x02c__torch__\nNet\n)\x81}(".as_slice(), &item("a", 0, 1), b"ub."].concat();
    let data: (&str, &[u8]) = ("m/data/0", &[1; 8]);
    let code: (&str, &[u8]) = ("m/code/__torch__.py", b"raise SystemExit");
    let checkpoint = open_bytes(&path, &zip(&[("m/data.pkl", &object), data, code])).unwrap();
    assert_eq!(checkpoint.tensors()[0].name, "a");
    let error = open_bytes(&path, &zip(&[("m/data.pkl", &object), data])).unwrap_err().to_string();
    assert!(error.contains("__torch__.Net"), "{error}");
    let evil = [b"\x80\x02cposix\nsystem\n)\x81}(".as_slice(), &item("a", 0, 1), b"ub."].concat();
    let error = open_bytes(&path, &zip(&[("m/data.pkl", &evil), data, code])).unwrap_err().to_string();
    assert!(error.contains("posix.system"), "{error}");
    // An object that is an attribute of itself.
    let round = b"\x80\x02c__torch__\nNet\n)\x81q\0}X\x01\0\0\0ah\0sb.";
    let error = open_bytes(&path, &zip(&[("m/data.pkl", round), data, code])).unwrap_err().to_string();
    assert!(error.contains("without end"), "{error}");
}

#[test]
fn transposed_convolutions_of_a_program_are_recognized() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let layer = |key: &str, class: &[u8], tensor: &[u8]| {
        let name = [b"X".as_slice(), (key.len() as u32).to_le_bytes().as_slice(), key.as_bytes()].concat();
        [name.as_slice(), b"c__torch__.torch.nn.modules.conv", class, b"\n)\x81}(", tensor, b"ub"].concat()
    };
    let object = [
        b"\x80\x02c__torch__\nNet\n)\x81}(".as_slice(),
        &layer("up", b".___torch_mangle_3\nConvTranspose2d", &item("weight", 0, 1)),
        &layer("down", b"\nConv2d", &item("weight", 0, 1)),
        b"ub.",
    ];
    let data: (&str, &[u8]) = ("m/data/0", &[1; 8]);
    let code: (&str, &[u8]) = ("m/code/__torch__.py", b"");
    let checkpoint = open_bytes(&path, &zip(&[("m/data.pkl", &object.concat()), data, code])).unwrap();
    assert_eq!(checkpoint.tensors().len(), 2);
    assert_eq!(checkpoint.transposed_layers(), ["up"]);
}

#[test]
fn zip_bombs_are_refused_before_unpacking() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let pickle = dict(&item("a", 0, 1));
    let mut bytes = zip_as(
        How { deflated: &["m/data/0"], is_wide: false },
        &[("m/data.pkl", &pickle), ("m/data/0", &[0; 8]), ("m/pad", &[0; 64])],
    );
    // The size of the storage in the directory.
    let directory = bytes.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    let entry = bytes[..directory].windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    bytes[entry + 24..entry + 28].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let error = open_bytes(&path, &bytes).unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.to_string().contains("unpacks to 2147483647 bytes"), "{error}");
}

#[test]
fn other_zip_archives_are_recognized_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.whl");
    /// Entries, and a phrase of the error.
    type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a str);
    let cases: [Case; 6] = [
        (&[("m/__init__.py", b""), ("m/data/w.pth", b"x"), ("m-1.dist-info/WHEEL", b"")], "found a Python wheel"),
        (&[("m/data/w.pth", b"x"), ("m-1.dist-info/WHEEL", b"")], "such as \"m/data/w.pth\""),
        (&[("a.npy", b""), ("b.npy", b"")], "NumPy arrays"),
        (&[("config.json", b"{}"), ("model.weights.h5", b"")], "Keras"),
        (
            &[("m/archive_format", b"pt2"), ("m/models/model.json", b"{}"), ("m/data/sample_inputs/model.pt", b"")],
            "torch.export",
        ),
        (&[("a/model.safetensors", b""), ("readme", b"")], "unzip it and use the weights inside, such as \"a/model"),
    ];
    for (entries, phrase) in cases {
        let error = open_bytes(&path, &zip(entries)).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
        assert!(!error.to_string().contains("torch.save"), "{error}");
    }
}

#[test]
fn a_big_endian_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let pickle = dict(&item("a", 0, 1));
    for (order, phrase) in [(b"big".as_slice(), "big-endian"), (b"odd", "neither little nor big")] {
        let bytes = zip(&[("m/data.pkl", &pickle), ("m/data/0", &[0; 8]), ("m/byteorder", order)]);
        let error = open_bytes(&path, &bytes).unwrap_err();
        assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{error}");
    }
}

#[test]
fn json_without_an_index_is_not_reported_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer"] {
        let path = dir.path().join(name);
        let error = open_bytes(&path, br#"{"version": "1.0", "model": {}}"#).unwrap_err();
        let message = error.to_string();
        assert!(error.kind == ErrorKind::Input && message.contains("found JSON"), "{message}");
        assert!(!message.contains("damaged"), "{message}");
    }
}
