//! `verify` finds a flipped bit, a byte too many or too few, and a file too many or missing.

use crate::sandbox::Sandbox;
use crate::weights::{Random, safetensors_of, tiny};
use briquette::RunOptions;
use briquette::pipeline::verify::verify;
use std::path::Path;

/// Number of bits flipped in each format.
const N_FLIPS: u64 = 250;
/// Files that may differ between two runs of one recipe.
const UNCOVERED: [&str; 2] = ["report.json", "report.html"];

/// Makes an output in each format, small enough to verify a thousand times.
fn outputs() -> (Sandbox, [&'static str; 5]) {
    let sandbox = Sandbox::new();
    sandbox.write("tiny/model.safetensors", safetensors_of(&tiny()));
    sandbox.write("tiny/config.json", "{\"model_type\": \"tiny\"}\n");
    sandbox.write("tiny/1_Pooling/config.json", "{}\n");
    let formats = ["briquette", "dense", "burnpack", "compressed-tensors", "entropy"];
    for format in formats {
        let how = if format == "entropy" {
            "--storage entropy".into()
        } else {
            format!("--format {format} --allow-untested")
        };
        sandbox.ok(&format!("compress tiny -o {format} {how} --prune 0.5 --quantize int8"));
    }
    (sandbox, formats)
}

fn is_found(output: &Path) -> bool {
    match verify(output, None, &RunOptions { threads: 1, ..RunOptions::default() }) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.exit_code(), 4, "{error}");
            assert!(!error.to_string().contains('\n'));
            true
        }
    }
}

/// Returns the files of an output that verification covers, with their bytes.
fn covered(sandbox: &Sandbox, output: &str) -> Vec<(String, Vec<u8>)> {
    let files = sandbox.files(output).into_iter();
    files.filter(|(name, _)| !name.ends_with('/') && !UNCOVERED.contains(&name.as_str())).collect()
}

#[test]
fn every_flipped_bit_is_found() {
    let (sandbox, formats) = outputs();
    let mut random = Random(20240607);
    for format in formats {
        let output = sandbox.path(format);
        assert!(!is_found(&output), "{format}: found damage in an intact output");
        let files = covered(&sandbox, format);
        let n_bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        for _ in 0..N_FLIPS {
            let (mut place, bit) = (random.below(n_bytes as u64) as usize, random.below(8));
            let (name, good) = files
                .iter()
                .find(|(_, bytes)| {
                    let is_here = place < bytes.len();
                    place -= if is_here { 0 } else { bytes.len() };
                    is_here
                })
                .unwrap();
            let mut bad = good.clone();
            bad[place] ^= 1 << bit;
            std::fs::write(output.join(name), bad).unwrap();
            assert!(is_found(&output), "{format}/{name}: byte {place}, bit {bit}");
            std::fs::write(output.join(name), good).unwrap();
        }
        assert!(!is_found(&output), "{format}: found damage after it was repaired");
    }
}

#[test]
fn longer_shorter_missing_renamed_and_new_files_are_found() {
    let (sandbox, formats) = outputs();
    for format in formats {
        let output = sandbox.path(format);
        for (name, good) in covered(&sandbox, format) {
            let path = output.join(&name);
            for bad in
                [&[good.as_slice(), b"\n"].concat(), &[good.as_slice(), b"\0"].concat(), &good[..good.len() - 1], b""]
            {
                std::fs::write(&path, bad).unwrap();
                assert!(is_found(&output), "{format}/{name}: {} bytes of {}", bad.len(), good.len());
            }
            std::fs::remove_file(&path).unwrap();
            assert!(is_found(&output), "{format}/{name} is missing");
            std::fs::write(output.join("renamed"), &good).unwrap();
            assert!(is_found(&output), "{format}/{name} was renamed");
            std::fs::rename(output.join("renamed"), &path).unwrap();
        }
        for name in ["extra.txt", "1_Pooling/extra", ".hidden", "model-00002-of-00002.safetensors"] {
            std::fs::write(output.join(name), "x").unwrap();
            assert!(is_found(&output), "{format}/{name} is new");
            std::fs::remove_file(output.join(name)).unwrap();
        }
        assert!(!is_found(&output), "{format}: found damage after it was repaired");
    }
}
