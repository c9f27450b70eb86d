//! Small files that describe far more than they contain are refused quickly and in little memory.

#![allow(clippy::unwrap_used)]

mod archives;
#[allow(dead_code)]
mod common;

use archives::{dict, key, tensor, zip};
use briquette_core::ErrorKind;
use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_formats::Checkpoint;
use std::path::Path;
use std::time::{Duration, Instant};

/// Builds a file when its test runs.
type Make = fn() -> Vec<u8>;

/// Limits for one file, with a margin for debug builds.
const MAX_TIME: Duration = Duration::from_secs(5);
const MAX_BYTES: u64 = 128 << 20;

/// Builds one list of pairs, from which many dictionaries are made.
fn copied_dictionaries() -> Vec<u8> {
    let pairs = [b"]q\x00(".as_slice(), &b"K\x01K\x02\x86".repeat(20_000), b"e0ccollections\nOrderedDict\nq\x010"];
    let copies = b"h\x01h\x00\x85R0".repeat(20_000);
    [b"\x80\x02", pairs.concat().as_slice(), &copies, b"}."].concat()
}

/// Builds one list of numbers that is the shape and the strides of many tensors.
fn copied_shapes() -> Vec<u8> {
    let list = [b"]q\x00(".as_slice(), &b"K\x01".repeat(20_000), b"e0"].concat();
    let items: Vec<u8> =
        (0..5_000_u16).flat_map(|i| [key(&i.to_string()), tensor(b"K\x00h\x00h\x00")].concat()).collect();
    [b"\x80\x02", list.as_slice(), b"}(", &items, b"u."].concat()
}

/// Builds a long key, with one tensor under many names below it.
fn copied_names() -> Vec<u8> {
    let tensors: Vec<u8> =
        (0..5_000_u16).flat_map(|i| [b"M".as_slice(), &i.to_le_bytes(), b"h\x00"].concat()).collect();
    let one = [tensor(b"K\x00K\x01\x85K\x01\x85").as_slice(), b"q\x000"].concat();
    [b"\x80\x02", one.as_slice(), b"}(", &key(&"k".repeat(1 << 20)), b"}(", &tensors, b"uu."].concat()
}

/// Builds nested lists that contain the next list twice.
fn doubled_lists() -> Vec<u8> {
    let doubled = (0..60_u8).flat_map(|i| [b'h', i, b'h', i, 0x86, b'q', i + 1, b'0']);
    let lists: Vec<u8> = b")q\x000".iter().copied().chain(doubled).collect();
    [b"\x80\x02", lists.as_slice(), b"}(", &key("a"), b"h\x3cu."].concat()
}

/// Returns ten million bytes of JSON values that need a hundred bytes each in memory.
fn many(one: &str) -> String {
    format!("{one},").repeat(10_000_000 / (one.len() + 1)) + one
}

fn header(json: String) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
}

fn long_shape() -> Vec<u8> {
    header(format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,0]}}}}"#, many("1")))
}

fn many_strings() -> Vec<u8> {
    let strings: Vec<String> = (0..800_000).map(|i| format!(r#""{i}":"""#)).collect();
    header(format!(r#"{{"__metadata__":{{{}}}}}"#, strings.join(",")))
}

fn long_configuration() -> Vec<u8> {
    format!(r#"{{"quantization_config":{{"a":[{}]}}}}"#, many(r#"{"":0}"#)).into_bytes()
}

fn long_recipe() -> Vec<u8> {
    let head = r#"{"format":"briquette","version":1,"producer":"","profile":"briquette","recipe":["#;
    format!(r#"{head}{}],"tensors":{{}}}}"#, many(r#"{"":0}"#)).into_bytes()
}

/// Returns files other than pickles: name, contents, and a phrase of the error.
fn texts() -> Vec<(&'static str, Make, &'static str)> {
    vec![
        ("model.safetensors", long_shape, "extents"),
        ("model.safetensors", many_strings, "keys"),
        ("config.json", long_configuration, "a value of"),
        ("briquette.json", long_recipe, "a value of"),
    ]
}

/// Opens a directory, and checks the error, its time and its memory.
fn check(path: &Path, phrase: &str) {
    let since = Instant::now();
    let error = Checkpoint::open(path).unwrap_err();
    assert!(error.kind == ErrorKind::Input && error.to_string().contains(phrase), "{phrase}: {error}");
    assert!(error.to_string().len() < 4000, "{phrase}: {} letters", error.to_string().len());
    assert!(since.elapsed() < MAX_TIME, "{phrase}: {:?}", since.elapsed());
    let peak = ResidentSet.peak_bytes().unwrap();
    assert!(peak < MAX_BYTES, "{phrase}: {peak} bytes");
}

/// Returns all pickles, each with a phrase of its error.
fn pickles() -> Vec<(Make, &'static str)> {
    vec![
        (|| dict(&[]), "no tensor"),
        (copied_dictionaries, "values"),
        (copied_shapes, "damaged"),
        (copied_names, "without end"),
        (doubled_lists, "without end"),
        (|| [b"\x80\x02".as_slice(), &b")".repeat(9_000_000)].concat(), "values"),
        (|| [b"\x80\x02)".as_slice(), &b"\x85".repeat(9_000_000)].concat(), "values"),
        (|| [b"\x80\x02".as_slice(), &b"N\x94".repeat(5_000_000)].concat(), "values"),
    ]
}

// One test for all files, because the peak memory of the process is measured.
#[test]
fn each_bomb_is_refused_in_little_time_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    for (pickle, phrase) in pickles() {
        std::fs::write(&path, zip(&[("m/data.pkl", &pickle()), ("m/data/0", &[0; 8])])).unwrap();
        check(&path, phrase);
    }
    for (name, text, phrase) in texts() {
        let dir = tempfile::tempdir().unwrap();
        if name == "config.json" {
            let weights = common::fixture("golden/ct-int8/model.safetensors");
            std::fs::copy(weights, dir.path().join("model.safetensors")).unwrap();
        }
        std::fs::write(dir.path().join(name), text()).unwrap();
        check(dir.path(), phrase);
    }
}
