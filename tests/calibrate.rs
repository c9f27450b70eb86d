//! Statistics of what goes into layers, and what is decided by them.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};

fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    copy(&repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox
}

const CALIBRATE: &str = "calibrate digits --data digits-data.safetensors --device cpu";

#[test]
fn statistics_are_gathered_and_ranges_and_scores_are_found_by_them() {
    let sandbox = digits();
    let found = sandbox.json(&format!("{CALIBRATE} -o stats.safetensors"));
    let layers = found["layers"].as_array().unwrap();
    let layer = |name: &str| layers.iter().find(|layer| layer["name"] == name).unwrap();
    // Of 360 images: 64 places each for the first convolution, one vector each for the last layer.
    assert_eq!((layer("conv1")["n_vectors"].as_u64(), layer("conv1")["n_inputs"].as_u64()), (Some(360 * 64), Some(9)));
    assert_eq!((layer("fc2")["n_vectors"].as_u64(), layer("fc2")["is_few"].as_bool()), (Some(360), Some(true)));
    assert_eq!((layers.len(), found["n_items"].as_u64()), (4, Some(360)));
    let range = |range: &str, out: &str| {
        let line = format!("compress digits -o {out} --quantize int4 --range {range}");
        sandbox.ok(&if range == "weighted" { format!("{line} --statistics stats.safetensors") } else { line });
        sandbox.json(&format!("diff digits {out}"))
    };
    assert_ne!(range("weighted", "weighted"), range("mse", "mse"));
    sandbox.ok("compress digits -o wanda --prune 0.5 --prune-method wanda --statistics stats.safetensors");
    sandbox.ok("compress digits -o both --prune 0.5 --prune-method wanda --quantize int4 --range weighted --statistics stats.safetensors");
    let text = sandbox.ok(&format!("{CALIBRATE} -o few.safetensors --samples 7 --seed 3")).stdout;
    for word in ["7 items", "saw fewer than 512 vectors", "fc1, fc2", "few.safetensors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn the_same_samples_give_the_same_bytes_at_any_number_of_threads() {
    let sandbox = digits();
    let bytes = |threads: usize, seed: usize| {
        sandbox.ok(&format!("{CALIBRATE} -o s --force --samples 100 --seed {seed} --threads {threads}"));
        std::fs::read(sandbox.path("s")).unwrap()
    };
    assert_eq!(bytes(1, 0), bytes(2, 0));
    assert_ne!(bytes(2, 0), bytes(2, 1));
}

#[test]
fn what_cannot_be_calibrated_is_one_line_and_nothing_is_written() {
    let sandbox = digits();
    sandbox.ok(&format!("{CALIBRATE} -o s"));
    let before = sandbox.files("");
    sandbox.run(&format!("{CALIBRATE} -o s")).assert_fails(6, &["s: exists already", "--force"]);
    sandbox.run(&format!("{CALIBRATE} -o digits/s")).assert_fails(6, &["digits/s", "taken for weights"]);
    sandbox.run(&format!("{CALIBRATE} -o t --samples 0")).assert_fails(2, &["--samples"]);
    sandbox.run("calibrate digits --data nothing -o t").assert_fails(4, &["nothing"]);
    sandbox.run("calibrate digits-data.safetensors --data digits-data.safetensors -o t").assert_fails(2, &["arch"]);
    let compress = "compress digits -o out --quantize int4";
    sandbox.run(&format!("{compress} --range weighted")).assert_fails(2, &["statistics: missing", "weighted"]);
    sandbox.run(&format!("{compress} --statistics s")).assert_fails(2, &["--statistics", "--range weighted"]);
    sandbox.run(&format!("{compress} --range mse --statistics s")).assert_fails(2, &["--range weighted"]);
    let codes = "compress digits -o codes --quantize int8-dynamic";
    sandbox.ok(codes);
    let of_codes = sandbox.run("compress codes -o again --prune 0.5 --prune-method wanda --statistics s");
    of_codes.assert_fails(6, &["quantized"]);
    std::fs::remove_dir_all(sandbox.path("codes")).unwrap();
    assert_eq!(sandbox.files(""), before, "nothing was written");
}
