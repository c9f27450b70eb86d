//! Readers refuse damaged tensors: a flipped bit in an output or a PyTorch archive is found.

use crate::sandbox::{Sandbox, repository};
use crate::weights::{Tensor, safetensors_of, tiny};
use briquette::formats::{InputFile, TensorInfo, burnpack, safetensors};

/// Commands that read every value of a model.
const READERS: [&str; 4] =
    ["export M --to dense -o new", "export M --to briquette -o new", "diff M M", "inspect M --zeros"];
/// Commands that compress; they refuse quantized models before they read a tensor.
const COMPRESSING: [&str; 3] = [
    "compress M -o new --quantize int8",
    "compress M -o new --prune 0.9",
    "compress M -o new --prune 0.9 --scope global",
];

/// Returns every tensor of a weight file and its start.
fn parts_of(sandbox: &Sandbox, file: &str) -> Vec<(TensorInfo, u64)> {
    let file = InputFile::open(&sandbox.path(file)).unwrap();
    let is_burnpack = file.path().extension().is_some_and(|extension| extension == "bpk");
    let header = if is_burnpack { burnpack::read_header(&file) } else { safetensors::FileHeader::read(&file) };
    header.unwrap().tensors.into_iter().filter(|(info, _)| info.n_bytes() > 0).collect()
}

/// Returns the path of an output's weight file.
fn weights_of(sandbox: &Sandbox, output: &str) -> String {
    let names = sandbox.files(output).into_keys();
    let is_weight = |name: &String| name.ends_with(".safetensors") || name.ends_with(".bpk");
    format!("{output}/{}", names.into_iter().find(is_weight).unwrap())
}

/// Flips a bit in the middle of each part in turn and checks that each command refuses it.
///
/// Parts that only repeat the manifest are not read, so flips there are not tested.
fn assert_flips_are_refused(sandbox: &Sandbox, output: &str, lines: &[&str]) {
    let file = weights_of(sandbox, output);
    let good = std::fs::read(sandbox.path(&file)).unwrap();
    // Batch counters do not affect the output of a network.
    let is_evaluated = lines.iter().any(|line| line.starts_with("eval"));
    let is_read = |name: &str| !(name.ends_with("_shape") || is_evaluated && name.ends_with("num_batches_tracked"));
    for (info, start) in parts_of(sandbox, &file).into_iter().filter(|(info, _)| is_read(&info.name)) {
        let mut bad = good.clone();
        bad[start as usize + info.n_bytes() / 2] ^= 0x04;
        sandbox.write(&file, &bad);
        for line in lines {
            let outcome = sandbox.run(&line.replace('M', output));
            outcome.assert_fails(4, &["damaged"]);
            let stem = info.name.split('.').next().unwrap();
            assert!(outcome.stderr.contains("tensor \"") || outcome.stderr.contains(stem), "{info:?}: {outcome:?}");
            assert!(!sandbox.path("new").exists(), "{info:?}: {outcome:?}");
        }
    }
    sandbox.write(&file, &good);
    for line in lines.iter().filter(|line| line.starts_with("diff")) {
        sandbox.ok(&line.replace('M', output));
    }
}

#[test]
fn readers_refuse_a_flipped_bit_in_any_part() {
    let sandbox = Sandbox::new();
    // A tensor with two names.
    let mut tensors = tiny();
    tensors.push(Tensor { name: "head.weight".into(), ..Tensor::random("", &[12, 32], 1) });
    sandbox.write("tiny/model.safetensors", safetensors_of(&tensors));
    for (i, how) in [
        "--quantize int8",
        "--quantize int8-asym",
        "--quantize int4-g16",
        "--prune 0.6 --quantize int3",
        "--prune 0.8 --quantize int8-dynamic",
        "--prune 0.8",
        "--cast bf16 --format dense",
        "--quantize int8 --format burnpack",
        "--quantize int8-dynamic --format compressed-tensors --allow-untested",
        "--quantize int4-g16 --format compressed-tensors --allow-untested",
    ]
    .iter()
    .enumerate()
    {
        let output = format!("out{i}");
        sandbox.ok(&format!("compress tiny -o {output} {how}"));
        assert_flips_are_refused(&sandbox, &output, &READERS);
        if !how.contains("--quantize") {
            assert_flips_are_refused(&sandbox, &output, &COMPRESSING);
        }
        sandbox.ok(&format!("verify {output}"));
    }
}

#[test]
fn readers_check_the_hash_blocks_of_large_tensors() {
    let sandbox = Sandbox::new();
    let large = |name: &str, shape: &[usize]| Tensor::random(name, shape, 5);
    let ids = Tensor {
        name: "ids".into(),
        dtype: briquette::core::DType::U8,
        shape: vec![200_001],
        bytes: (0..200_001_u32).map(|i| i as u8).collect(),
    };
    let tensors =
        [large("wide.weight", &[3, 70_001]), large("tall.weight", &[3000, 700]), large("v", &[1_200_000]), ids];
    sandbox.write("large/model.safetensors", safetensors_of(&tensors));
    for (i, how) in ["--quantize int8", "--quantize int8 --format dense", "--prune 0.7"].iter().enumerate() {
        let output = format!("out{i}");
        sandbox.ok(&format!("compress large -o {output} {how}"));
        for threads in [" --threads 1", " --threads 3"] {
            let with_threads = |line: &&str| format!("{line}{threads}");
            let is_coded = *how == "--quantize int8";
            let compressing = COMPRESSING.iter().filter(|_| !is_coded);
            let lines: Vec<String> = READERS.iter().chain(compressing).map(with_threads).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert_flips_are_refused(&sandbox, &output, &lines);
        }
    }
}

#[test]
fn a_changed_manifest_or_small_file_is_refused() {
    let sandbox = Sandbox::with("digits");
    sandbox.ok("compress digits -o out --quantize int8");
    let manifest = String::from_utf8(sandbox.files("out")["briquette.json"].clone()).unwrap();
    let at = manifest.find("\"hash\": \"").unwrap() + 9;
    let digit = if &manifest[at..=at] == "0" { "1" } else { "0" };
    for changed in [
        format!("{}{digit}{}", &manifest[..at], &manifest[at + 1..]),
        manifest.replacen("\"scheme\": \"int8\"", "\"scheme\": \"int4\"", 1),
    ] {
        assert_ne!(changed, manifest);
        sandbox.write("out/briquette.json", &changed);
        for line in READERS {
            let outcome = sandbox.run(&line.replace('M', "out"));
            outcome.assert_fails(4, &["out/briquette.json: found SHA-256", "make the output again"]);
        }
        // Without `SHA256SUMS`, only the hashes of values protect the output.
        let sums = sandbox.files("out")["SHA256SUMS"].clone();
        std::fs::remove_file(sandbox.path("out/SHA256SUMS")).unwrap();
        let outcome = sandbox.run("export out --to dense -o new --force");
        assert_eq!(outcome.code == 4, changed.contains("\"scheme\": \"int8\""), "{outcome:?}");
        sandbox.write("out/SHA256SUMS", sums);
        std::fs::remove_dir_all(sandbox.path("new")).ok();
    }
    sandbox.write("out/briquette.json", &manifest);
    let config = sandbox.files("out")["config.json"].clone();
    sandbox.write("out/config.json", String::from_utf8(config).unwrap().replacen('1', "2", 1));
    sandbox.run("export out --to dense -o new").assert_fails(4, &["out/config.json: found SHA-256"]);
}

#[test]
fn readers_refuse_a_flipped_bit_in_a_pytorch_archive() {
    let sandbox = Sandbox::new();
    for name in ["digits.pt", "pt/strided.pt", "pt/tied.pt", "pt/half.pt"] {
        let good = std::fs::read(repository().join("fixtures").join(name)).unwrap();
        let model = name.rsplit('/').next().unwrap();
        let places: Vec<usize> = places_of_data(&good);
        assert!(!places.is_empty(), "{name}");
        for at in places {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            sandbox.write(model, &bad);
            for line in READERS.iter().chain(&COMPRESSING) {
                sandbox.run(&line.replace('M', model)).assert_fails(4, &[model, "CRC-32", "damaged"]);
                assert!(!sandbox.path("new").exists());
            }
        }
        sandbox.write(model, &good);
        sandbox.ok(&format!("export {model} --to dense -o new"));
        std::fs::remove_dir_all(sandbox.path("new")).unwrap();
    }
}

/// Returns the position of a byte in the middle of each uncompressed entry below `data/` of a zip archive.
fn places_of_data(archive: &[u8]) -> Vec<usize> {
    let number =
        |at: usize, n: usize| archive[at..at + n].iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let heads = (0..archive.len() - 46).filter(|&at| archive[at..].starts_with(b"PK\x01\x02"));
    let place = |at: usize| {
        let name = &archive[at + 46..at + 46 + number(at + 28, 2)];
        let (n_bytes, local) = (number(at + 24, 4), number(at + 42, 4));
        let data = local + 30 + number(local + 26, 2) + number(local + 28, 2);
        let is_data = String::from_utf8_lossy(name).contains("/data/");
        (is_data && n_bytes > 0).then_some(data + n_bytes / 2)
    };
    heads.filter_map(place).collect()
}

#[cfg(feature = "model")]
#[test]
fn an_evaluation_refuses_damaged_weights_in_every_storage() {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    std::fs::copy(repository().join("fixtures").join(data), sandbox.path(data)).unwrap();
    let line = format!("eval M --data {data} --device cpu");
    for (i, how) in [
        "--quantize int8-dynamic",
        "--quantize int8",
        "--quantize int4-g16 --exclude conv1.weight",
        "--prune 0.8 --quantize int8",
        "--prune 0.7",
        "--format dense --quantize int8",
        "--format compressed-tensors --quantize int8-dynamic --allow-untested",
    ]
    .iter()
    .enumerate()
    {
        let output = format!("out{i}");
        sandbox.ok(&format!("compress digits -o {output} {how}"));
        assert_flips_are_refused(&sandbox, &output, &[&line]);
        sandbox.ok(&line.replace('M', &output));
    }
    let good = std::fs::read(repository().join("fixtures/digits.pt")).unwrap();
    let mut bad = good.clone();
    bad[places_of_data(&good)[1]] ^= 1;
    sandbox.write("digits.pt", &bad);
    sandbox.run(&line.replace('M', "digits.pt")).assert_fails(4, &["CRC-32"]);
}
