//! Damaged and inconsistent files are refused with one clear line, and none panics.

#![allow(clippy::unwrap_used)]

mod files;

use briquette_core::{Error, ErrorKind};
use briquette_formats::Checkpoint;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn open_bytes(name: &str, bytes: &[u8]) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), bytes).unwrap();
    Checkpoint::open(&dir.path().join(name))
}

/// Asserts that an error is about the input and contains a phrase.
fn assert_says(found: Result<Checkpoint, Error>, phrase: &str) {
    let error = found.expect_err(phrase);
    assert!(error.is_bad_input() && error.to_string().contains(phrase), "{phrase}: {error}");
}

fn with_header(header: &str, n_data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; n_data]].concat()
}

fn entry(name: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn each_prefix_of_a_safetensors_file_is_refused() {
    let bytes = std::fs::read(fixture("digits/model.safetensors")).unwrap();
    let n_header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let later = (n_header..bytes.len()).step_by(4099).chain([bytes.len() - 1]);
    for n in (0..n_header).chain(later) {
        let error = open_bytes("m.safetensors", &bytes[..n]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Input, "{n} bytes: {error}");
    }
    assert_says(open_bytes("m.safetensors", &[&bytes[..], b"x"].concat()), "belong to no tensor");
}

#[test]
fn a_false_header_length_is_refused() {
    let header = format!("{{{}}}", entry("a", "[1]", 0, 4));
    let good = with_header(&header, 4);
    open_bytes("m.safetensors", &good).unwrap();
    let long = 1 + good.len() as u64;
    for (length, phrase) in [
        (0, "not valid"),
        (long, "cut short"),
        (99_999_999, "cut short"),
        (100_000_001, "unknown format"),
        (u64::MAX, "unknown format"),
    ] {
        let mut bytes = good.clone();
        bytes[..8].copy_from_slice(&u64::to_le_bytes(length));
        assert_says(open_bytes("m.safetensors", &bytes), phrase);
    }
}

#[test]
fn contradictory_offsets_and_shapes_are_refused() {
    let a = entry("a", "[2]", 0, 8);
    let cases = [
        (vec![a.clone(), entry("b", "[2]", 4, 12)], 12, "overlaps"),
        (vec![a.clone(), entry("b", "[2]", 0, 8)], 8, "overlaps"),
        (vec![a.clone(), entry("b", "[1]", 12, 16)], 16, "hole"),
        (vec![a.clone(), entry("a", "[2]", 8, 16)], 16, "occurs twice"),
        (vec![a.clone(), entry("\\u0061", "[2]", 8, 16)], 16, "occurs twice"),
        (vec![entry("a", "[2.0]", 0, 8)], 8, "not valid"),
        (vec![entry("a", "[-2]", 0, 8)], 8, "not valid"),
        (vec![entry("a", "[\"2\"]", 0, 8)], 8, "not valid"),
        (vec![entry("a", "[4294967296,4294967296,4]", 0, 8)], 8, "no size"),
        (vec![entry("a", "[18446744073709551615,2]", 0, 8)], 8, "no size"),
        (vec![entry("a", &format!("[{}2]", "1,".repeat(64)), 0, 8)], 8, "64 extents"),
        (vec![entry("a", "[2]", 8, 0)], 8, "expected 8"),
        (vec![entry("a", "[2]", 18_446_744_073_709_551_608, 0)], 8, "expected 8"),
        (vec![], 0, "no tensor"),
    ];
    for (entries, n_data, phrase) in cases {
        assert_says(open_bytes("m.safetensors", &with_header(&format!("{{{}}}", entries.join(",")), n_data)), phrase);
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_says(open_bytes("m.safetensors", &with_header(&deep, 0)), "not valid");
}

/// Opens a directory of shards with this index: `x.safetensors` with tensor `a`, `y.safetensors` with `b`, and
/// `z.safetensors` with `a`.
fn sharded(weight_map: &str) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    for (file, name) in [("x", "a"), ("y", "b"), ("z", "a")] {
        let bytes = with_header(&format!("{{{}}}", entry(name, "[1]", 0, 4)), 4);
        std::fs::write(dir.path().join(format!("{file}.safetensors")), bytes).unwrap();
    }
    let index = format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{{{weight_map}}}}}"#);
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    Checkpoint::open(dir.path())
}

#[test]
fn an_index_that_leaves_its_directory_or_contradicts_its_shards_is_refused() {
    sharded(r#""a":"x.safetensors","b":"y.safetensors""#).unwrap();
    let cases = [
        (r#""a":"../x.safetensors""#, "beside the index"),
        (r#""a":"/etc/passwd""#, "beside the index"),
        (r#""a":"x.safetensors\u0000""#, "beside the index"),
        (r#""a":"""#, "beside the index"),
        (r#""a":"absent.safetensors""#, "missing"),
        (r#""a":"x.safetensors","b":"y.safetensors","c":"y.safetensors""#, "missing"),
        (r#""a":"x.safetensors","c":"y.safetensors""#, "does not list"),
        (r#""a":"x.safetensors","b":"z.safetensors""#, "does not list"),
        (r#""a":"x.safetensors","\u0061":"z.safetensors""#, "occurs twice"),
        (r#""a":1"#, "not valid"),
        ("", "lists no tensor"),
    ];
    for (weight_map, phrase) in cases {
        assert_says(sharded(weight_map), phrase);
    }
}

#[test]
fn other_things_than_files_are_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("model.safetensors");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert_says(Checkpoint::open(&pipe), "regular file");
    assert_says(Checkpoint::open(dir.path()), "regular file");
    std::fs::remove_file(&pipe).unwrap();
    assert_says(Checkpoint::open(dir.path()), "found no weights");
    std::fs::create_dir(&pipe).unwrap();
    assert_says(Checkpoint::open(dir.path()), "directory");
    assert_says(Checkpoint::open(&dir.path().join("absent")), "no such file");
}

#[test]
fn a_false_manifest_is_refused() {
    let good = r#"{"format":"briquette","version":1,"producer":"t","profile":"briquette","recipe":{},"tensors":{"a":{"dtype":"F32","shape":[1],"coding":{"storage":"dense"},"file":"m.safetensors","hash":"00000000000000000000000000000000"}}}"#;
    let open = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let dir = tempfile::tempdir().unwrap();
        let weights = with_header(&format!("{{{}}}", entry("a", "[1]", 0, 4)), 4);
        std::fs::write(dir.path().join("m.safetensors"), weights).unwrap();
        std::fs::write(dir.path().join("briquette.json"), good.replacen(from, to, 1)).unwrap();
        Checkpoint::open(dir.path())
    };
    open("", "").unwrap();
    let cases = [
        ("\"version\":1", "\"version\":10", "newer"),
        ("\"briquette\"", "\"other\"", "newer"),
        ("[1]", "[2]", "expected F32 [2]"),
        ("F32", "F16", "expected F16"),
        ("\"shape\":[1]", "\"shape\":[18446744073709551615,3]", "no size"),
        ("m.safetensors", "../m.safetensors", "beside it"),
        ("m.safetensors", "absent.safetensors", "no such file"),
        ("\"a\":", "\"b\":", "missing"),
        (
            "\"dense\"}",
            "\"dense\",\"codes\":{\"bits\":8,\"grid\":\"symmetric\",\"grouping\":\"row\",\"scale\":\"F32\"}}",
            "missing",
        ),
        (
            "\"dense\"}",
            "\"dense\",\"codes\":{\"bits\":99,\"grid\":\"symmetric\",\"grouping\":\"row\",\"scale\":\"F32\"}}",
            "grid",
        ),
        (
            "\"dense\"}",
            "\"dense\",\"codes\":{\"bits\":8,\"grid\":\"symmetric\",\"grouping\":{\"group\":0},\"scale\":\"F32\"}}",
            "group size",
        ),
        ("\"dense\"}", "\"bitmask\"}", "missing"),
        ("\"file\"", "\"n_kept\":9,\"file\"", "more kept elements"),
        ("\"file\"", "\"unknown\":9,\"file\"", "not valid"),
        ("\"profile\":\"briquette\"", "\"profile\":\"none\"", "not valid"),
    ];
    for (from, to, phrase) in cases {
        assert_says(open(from, to), phrase);
    }
}

#[test]
fn each_prefix_of_a_manifest_is_refused() {
    for name in ["pruned-int8", "compressed-tensors", "burnpack"] {
        let from = fixture(&format!("frozen/v0_1_0_{name}"));
        let dir = tempfile::tempdir().unwrap();
        // SHA256SUMS would be checked before anything is parsed.
        let names = std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().file_name());
        for name in names.filter(|name| name != "SHA256SUMS") {
            std::fs::copy(from.join(&name), dir.path().join(name)).unwrap();
        }
        let bytes = std::fs::read(from.join("briquette.json")).unwrap();
        let n_json = bytes.trim_ascii_end().len();
        for n in 0..bytes.len() {
            files::replace(&dir.path().join("briquette.json"), &bytes[..n]);
            match Checkpoint::open(dir.path()) {
                Ok(_) => assert!(n >= n_json, "{n} bytes of {name}"),
                Err(error) => {
                    assert!(n < n_json && error.kind == ErrorKind::Input, "{n} bytes of {name}: {error}");
                    assert!(error.to_string().contains("briquette.json"), "{n} bytes of {name}: {error}");
                }
            }
        }
    }
}

/// Opens a directory of Briquette with one tensor `a` in codes, whose parts are one byte of codes and one
/// scale.
fn coded(profile: &str, dtype: &str, shape: &str, bits: u8) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    let codes = format!(r#"{{"bits":{bits},"grid":"symmetric","grouping":"row","scale":"F32"}}"#);
    let manifest = format!(
        r#"{{"format":"briquette","version":1,"producer":"t","profile":"{profile}","recipe":{{}},"tensors":{{"a":{{"dtype":"{dtype}","shape":{shape},"coding":{{"storage":"dense","codes":{codes}}},"file":"m.safetensors","hash":"00000000000000000000000000000000"}}}}}}"#
    );
    std::fs::write(dir.path().join("briquette.json"), manifest).unwrap();
    let byte = r#""a.codes":{"dtype":"U8","shape":[1,1],"data_offsets":[4,5]}"#;
    let header = format!("{{{},{byte}}}", entry("a.scale", "[1,1]", 0, 4));
    std::fs::write(dir.path().join("m.safetensors"), with_header(&header, 5)).unwrap();
    Checkpoint::open(dir.path())
}

#[test]
fn codes_whose_bits_overflow_are_refused() {
    coded("briquette", "F16", "[1]", 5).unwrap();
    let endless = coded("compressed-tensors", "F32", "[0,4611686018427387904]", 8);
    assert_says(endless, "compressed-tensors does not support rows of this many columns");
}
