//! Input statistics, and the stages that use them.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::core::{DType, InputStats};
use briquette::formats::input_stats::StatisticsFile;
use std::sync::Arc;

fn digits() -> Sandbox {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    copy(&repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox
}

const CALIBRATE: &str = "calibrate digits --data digits-data.safetensors --device cpu";

#[test]
fn calibration_gathers_statistics_for_ranges_and_scores() {
    let sandbox = digits();
    let found = sandbox.json(&format!("{CALIBRATE} -o stats.safetensors"));
    let layers = found["layers"].as_array().unwrap();
    let layer = |name: &str| layers.iter().find(|layer| layer["name"] == name).unwrap();
    // 360 images have 64 positions each in the first convolution and one vector each in the last layer.
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
    for word in ["7 items", "had fewer than 512 input vectors", "fc1, fc2", "few.safetensors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Writes statistics of the digits network with changed numbers, for `--statistics`.
fn damage(sandbox: &Sandbox, to: &str, change: impl Fn(&mut InputStats)) {
    let mut file = StatisticsFile::read(&sandbox.path("gram")).unwrap();
    file.layers.values_mut().for_each(change);
    file.write(&sandbox.path(to)).unwrap();
}

#[test]
fn an_update_that_is_not_finite_is_dropped_and_reported_by_every_method() {
    let sandbox = digits();
    sandbox.ok(&format!("{CALIBRATE} -o gram --gram"));
    damage(&sandbox, "huge", |stats| {
        let gram = stats.gram.as_mut().unwrap();
        Arc::make_mut(gram).iter_mut().for_each(|value| *value *= 1e80);
    });
    for what in
        ["--prune 0.5 --prune-method admm", "--prune 0.5 --prune-method sparsegpt", "--quantize int4 --round gptq"]
    {
        let report = sandbox.json(&format!("compress digits -o out {what} --statistics huge --force"));
        let said = report["remarks"].to_string();
        assert!(said.contains("fc1") && said.contains("because the updated weights are not finite"), "{what}: {said}");
        for tensor in tensors_of(&sandbox.path("out")).values().filter(|tensor| tensor.dtype == DType::F32) {
            assert!(tensor.floats().iter().all(|value| value.is_finite()), "{what}: {}", tensor.name);
        }
    }
    let nearest = "compress digits -o nearest --quantize int4";
    sandbox.ok(nearest);
    assert_eq!(tensors_of(&sandbox.path("out")), tensors_of(&sandbox.path("nearest")));
}

#[test]
fn an_update_beyond_the_range_of_its_type_is_dropped_too() {
    let sandbox = Sandbox::new();
    // 60,000 as f16: the updated weights would exceed the range of f16, whichever weight is pruned.
    let bytes: Vec<u8> = [0x7b53_u16; 32].into_iter().flat_map(u16::to_le_bytes).collect();
    let weight = Tensor { name: "fc.weight".into(), dtype: DType::F16, shape: vec![4, 8], bytes };
    sandbox.write("m.safetensors", safetensors_of(&[weight]));
    let gram = Arc::new((0..64).map(|at| if at % 9 == 0 { 1000.0 } else { 999.0 }).collect::<Vec<f64>>());
    let (sum, sum_squares, max) = (vec![990.0; 8], vec![1000.0; 8], vec![1.0; 8]);
    let stats = InputStats { count: 1000, sum, sum_squares, max, gram: Some(gram), ..InputStats::default() };
    StatisticsFile { layers: [("fc".to_string(), stats)].into(), ..Default::default() }
        .write(&sandbox.path("s"))
        .unwrap();
    for method in ["sparsegpt", "admm"] {
        let line = format!("compress m.safetensors -o out --prune 0.5 --prune-method {method} --statistics s --force");
        let report = sandbox.json(&line);
        assert!(report["remarks"].to_string().contains("not finite"), "{method}: {report}");
        let bytes = &tensors_of(&sandbox.path("out"))["fc.weight"].bytes;
        let kept: Vec<u16> = bytes.as_chunks().0.iter().map(|word| u16::from_le_bytes(*word)).collect();
        assert!(kept.iter().all(|word| [0, 0x7b53].contains(word)), "{method}: {kept:x?}");
    }
}

#[test]
fn impossible_statistics_are_refused() {
    let sandbox = digits();
    sandbox.ok(&format!("{CALIBRATE} -o gram --gram"));
    damage(&sandbox, "negative", |stats| stats.count = (-3_i64).cast_unsigned());
    damage(&sandbox, "infinite", |stats| stats.sum_squares[0] = f64::INFINITY);
    let compress = "compress digits -o out --prune 0.5 --prune-method wanda --statistics";
    sandbox.run(&format!("{compress} negative")).assert_fails(4, &["negative", "found count -3", "gather them again"]);
    sandbox.run(&format!("{compress} infinite")).assert_fails(4, &["infinite", "not finite"]);
    assert!(!sandbox.path("out").exists());
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
fn impossible_calibrations_are_refused_in_one_line_and_write_nothing() {
    let sandbox = digits();
    sandbox.ok(&format!("{CALIBRATE} -o s"));
    let before = sandbox.files("");
    sandbox.run(&format!("{CALIBRATE} -o s")).assert_fails(6, &["s: exists already", "--force"]);
    sandbox.run(&format!("{CALIBRATE} -o digits/s")).assert_fails(6, &["digits/s", "read as weights"]);
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
