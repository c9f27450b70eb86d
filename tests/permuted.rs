//! `verify` finds correct values in wrong positions.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::formats::sums;
use std::collections::BTreeMap;

/// Writes `SHA256SUMS` again, so that only the hashes of values can find a change.
fn sum_again(sandbox: &Sandbox, output: &str) {
    let path = |name: &str| format!("{output}/{name}");
    let files = sandbox.files(output);
    let listed = String::from_utf8(files[sums::FILE_NAME].clone()).unwrap();
    let lines = listed.lines().map(|line| line.split_once("  ").unwrap().1.to_string());
    let found: BTreeMap<String, String> =
        lines.map(|name| (name.clone(), sums::sha256_of_bytes(&files[&name]))).collect();
    sandbox.write(&path(sums::FILE_NAME), sums::to_lines(&found));
}

/// Transposes a square matrix of `n` by `n` elements in place.
fn transpose(bytes: &mut [u8], n: usize) {
    let width = bytes.len() / (n * n);
    let own = bytes.to_vec();
    for (index, element) in bytes.chunks_mut(width).enumerate() {
        let place = index % n * n + index / n;
        element.copy_from_slice(&own[place * width..(place + 1) * width]);
    }
}

/// Returns the position of a tensor's bytes in a file.
fn place_in(file: &[u8], bytes: &[u8]) -> usize {
    let mut places = (0..=file.len() - bytes.len()).filter(|&at| file[at..].starts_with(bytes));
    let place = places.next().expect("the tensor is in the file as it is");
    assert_eq!(places.next(), None, "the bytes occur more than once");
    place
}

#[test]
fn verify_finds_permuted_values_in_every_format() {
    let sandbox = Sandbox::new();
    let fc = Tensor::random("fc.weight", &[64, 64], 1);
    sandbox.write("m.safetensors", safetensors_of(&[fc.clone(), Tensor::random("up.weight", &[64, 16], 2)]));
    sandbox.ok("compress m.safetensors -o ours --layout burn --quantize int8 --include fc.weight");
    sandbox.ok("compress m.safetensors -o ct --quantize int8-dynamic --format compressed-tensors --allow-untested");
    sandbox.ok("export ours --to dense -o dense");
    sandbox.ok("export ours --to burnpack -o burnpack");
    for (output, file) in [
        ("ours", "model.briquette.safetensors"),
        ("ct", "model.safetensors"),
        ("dense", "model.safetensors"),
        ("burnpack", "model.bpk"),
    ] {
        sandbox.ok(&format!("verify {output}"));
        let mut bytes = sandbox.files(output)[file].clone();
        // int8 codes take one byte per weight; floats are stored as they are read.
        let length = if ["ours", "ct"].contains(&output) { 64 * 64 } else { 4 * 64 * 64 };
        let place = match length {
            4096 => codes_in(&bytes, output),
            _ => place_in(&bytes, &tensors_of(&sandbox.path(output))["fc.weight"].bytes),
        };
        transpose(&mut bytes[place..place + length], 64);
        sandbox.write(&format!("{output}/{file}"), &bytes);
        sum_again(&sandbox, output);
        sandbox.run(&format!("verify {output}")).assert_fails(4, &["fc.weight", "hash"]);
    }
}

/// Returns the position of the int8 codes of `fc.weight` in a safetensors file.
fn codes_in(file: &[u8], output: &str) -> usize {
    let n = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + n]).unwrap();
    let name = if output == "ours" { "fc.weight.codes" } else { "fc.weight" };
    8 + n + header[name]["data_offsets"][0].as_u64().unwrap() as usize
}

#[test]
fn verify_finds_a_manifest_with_another_output_axis() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&[Tensor::random("fc.weight", &[64, 64], 1)]));
    sandbox.ok("compress m.safetensors -o out --layout burn --quantize int8");
    let text = String::from_utf8(sandbox.files("out")["briquette.json"].clone()).unwrap();
    assert!(text.contains("\"version\": 5,") && text.contains("\"output_axis\": \"last\","), "{text}");
    sandbox.write("out/briquette.json", text.replace("\"output_axis\": \"last\",", ""));
    sum_again(&sandbox, "out");
    sandbox.run("verify out").assert_fails(4, &["fc.weight", "hash"]);
    // A reader finds it too.
    sandbox.run("export out --to dense -o dense").assert_fails(4, &["fc.weight"]);
}

#[test]
fn verify_against_the_original_finds_a_transposed_tensor_whose_hashes_match() {
    let sandbox = Sandbox::new();
    let fc = Tensor::random("fc.weight", &[64, 64], 1);
    let up = Tensor::random("up.weight", &[64, 16], 2);
    let mut turned = fc.clone();
    transpose(&mut turned.bytes, 64);
    sandbox.write("m.safetensors", safetensors_of(&[fc, up.clone()]));
    sandbox.write("wrong.safetensors", safetensors_of(&[turned, up]));
    for how in ["compress wrong.safetensors --quantize int8", "compress wrong.safetensors --prune 0.5"] {
        sandbox.ok(&format!("{how} -o out --force"));
        sandbox.ok("verify out");
        sandbox.ok("verify out --against wrong.safetensors");
        sandbox.run("verify out --against m.safetensors").assert_fails(4, &["fc.weight"]);
    }
    for format in ["dense", "burnpack"] {
        sandbox.ok(&format!("export wrong.safetensors --to {format} -o {format}"));
        sandbox.run(&format!("verify {format} --against m.safetensors")).assert_fails(4, &["fc.weight"]);
    }
}
