//! Image networks are calibrated, compressed and evaluated block by block.
#![cfg(feature = "model")]

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::core::InputStats;
use briquette::formats::input_stats::StatisticsFile;
use serde_json::Value;

/// Creates an image network of the fixtures, with images for it.
fn images(name: &str) -> Sandbox {
    let sandbox = Sandbox::with(&format!("families/{name}"));
    let golden = tensors_of(&sandbox.path(name).join("golden.safetensors"));
    let shape = [12, 3, golden["images"].shape[2], golden["images"].shape[3]];
    sandbox.write("images.safetensors", safetensors_of(&[Tensor::random("x", &shape, 5)]));
    std::fs::remove_file(sandbox.path(name).join("golden.safetensors")).unwrap();
    sandbox
}

/// Returns how many tensors have updated weights, and the sums of their output errors before and after the update.
fn errors(report: &Value) -> (usize, f64, f64) {
    let solved = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["solved"].is_null());
    let of = |tensor: &Value, key: &str| tensor["solved"][key].as_f64().unwrap();
    solved.fold((0, 0.0, 0.0), |(n, before, after), tensor| {
        (n + 1, before + of(tensor, "outputs_unmoved"), after + of(tensor, "outputs"))
    })
}

#[test]
fn image_networks_are_calibrated_and_compressed_block_by_block() {
    for (name, n_updated) in [("vit", 14), ("mobilenet_v2", 53)] {
        let sandbox = images(name);
        let data = "--data images.safetensors --device cpu --memory-limit 200MB --offload";
        let found = sandbox.json(&format!("calibrate {name} {data} --gram -o stats"));
        assert_eq!(found["n_items"], 12, "{found}");
        let gptq = format!("compress {name} {data} -o gptq --quantize int4 --round gptq");
        let report = sandbox.json(&gptq);
        let (n, before, after) = errors(&report);
        assert_eq!(n, n_updated, "{name}");
        assert!(!report["remarks"].to_string().contains("observed no inputs"), "{report}");
        assert!(after < 0.9 * before, "{name}: {after} of {before}");
        sandbox.ok(&format!("compress {name} {data} -o small --bits 8 --quiet"));
        for output in ["gptq", "small"] {
            let cosine = |flags: &str| {
                let line = format!("eval {output} --against {name} --data images.safetensors --device cpu {flags}");
                sandbox.json(&line)["metrics"]["cosine"].as_f64().unwrap()
            };
            let (whole, parts) = (cosine(""), cosine("--offload --memory-limit 200MB"));
            // By block, decoded weights have the type of the model, which is f16.
            assert!(whole > 0.5 && (whole - parts).abs() < 1e-3, "{name}, {output}: {whole} and {parts}");
        }
    }
}

/// Returns the values of a tensor of any float type.
fn floats(tensor: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; tensor.shape.iter().product()];
    briquette::core::rows::to_f32(&tensor.bytes, tensor.dtype, &mut values);
    values
}

/// Returns the mean over channel groups of `Σ e·G·eᵀ / Σ w·G·wᵀ`, with errors `e` of the weights `w`.
fn group_error(original: &Tensor, found: &Tensor, stats: &InputStats) -> f64 {
    let [original, found] = [original, found].map(floats);
    let n_cols = stats.gram.as_ref().unwrap().len() / stats.n_inputs();
    let (n_groups, n_rows) = (stats.n_groups(n_cols), original.len() / n_cols);
    assert!(n_groups > 1);
    let energy = |row: &[f64], gram: &[f64]| -> f64 {
        (0..n_cols * n_cols).map(|at| row[at / n_cols] * gram[at] * row[at % n_cols]).sum()
    };
    let (mut errors, mut whole) = (0.0, 0.0);
    for row in 0..n_rows {
        let group = stats.of_group(row / (n_rows / n_groups), n_cols);
        let cols = row * n_cols..(row + 1) * n_cols;
        let weights: Vec<f64> = original[cols.clone()].iter().copied().map(f64::from).collect();
        let apart: Vec<f64> = weights.iter().zip(&found[cols]).map(|(w, v)| w - f64::from(*v)).collect();
        errors += energy(&apart, group.gram.as_ref().unwrap());
        whole += energy(&weights, group.gram.as_ref().unwrap());
    }
    errors / whole
}

#[test]
fn updates_by_channel_group_reduce_output_errors_on_other_images() {
    for name in ["mobilenet_v2", "convnext", "mobilenet_v3-large"] {
        let sandbox = images(name);
        let shape = tensors_of(&sandbox.path("images.safetensors"))["x"].shape.clone();
        sandbox.write("other.safetensors", safetensors_of(&[Tensor::random("x", &shape, 6)]));
        sandbox.ok(&format!("calibrate {name} --data other.safetensors --gram -o other"));
        let stats = StatisticsFile::read(&sandbox.path("other")).unwrap().layers;
        sandbox.ok(&format!("calibrate {name} --data images.safetensors --gram -o stats"));
        let original = tensors_of(&sandbox.path(name));
        let is_grouped = |layer: &&String| {
            let weight = &original[&format!("{layer}.weight")];
            stats[*layer].n_groups(weight.shape[1..].iter().product()) > 1
        };
        let layers: Vec<&String> = stats.keys().filter(is_grouped).collect();
        assert!(layers.len() > 1, "{name}: {layers:?}");
        let errors = |flags: &str| -> f64 {
            sandbox.ok(&format!("compress {name} -o out {flags} --force"));
            sandbox.ok("export out --to dense -o dense --force");
            let found = tensors_of(&sandbox.path("dense"));
            let of = |layer: &&String| {
                let name = format!("{layer}.weight");
                group_error(&original[&name], &found[&name], &stats[*layer])
            };
            layers.iter().map(of).sum()
        };
        let nearest = errors("--quantize int3");
        let updated = errors("--quantize int3 --round gptq --statistics stats");
        assert!(updated < 0.8 * nearest, "{name}: GPTQ {updated} of {nearest}");
        let magnitude = errors("--prune 0.5");
        let wanda = errors("--prune 0.5 --prune-method wanda --statistics stats");
        assert!(wanda < magnitude, "{name}: Wanda {wanda} of {magnitude}");
        for method in ["sparsegpt", "admm"] {
            let found = errors(&format!("--prune 0.5 --prune-method {method} --statistics stats"));
            assert!(found < 0.8 * magnitude, "{name}: {method} {found} of {magnitude}");
        }
    }
}

/// Widens the tiny ViT: 6 layers of 0.9 MB each.
fn wide_vit() -> Sandbox {
    const LAYERS: usize = 6;
    let sandbox = images("vit");
    let wide = |extent: usize| match extent {
        16 => 144,
        24 => 576,
        other => other,
    };
    let mut tensors = Vec::new();
    for (name, tensor) in tensors_of(&sandbox.path("vit")) {
        if name.contains("layer.1.") {
            continue;
        }
        let shape: Vec<usize> = tensor.shape.iter().map(|&extent| wide(extent)).collect();
        let n_copies = if name.contains("layer.0.") { LAYERS } else { 1 };
        for layer in 0..n_copies {
            let name = name.replace("layer.0.", &format!("layer.{layer}."));
            tensors.push(Tensor::random(&name, &shape, layer as u64));
        }
    }
    sandbox.write("vit/model.safetensors", safetensors_of(&tensors));
    let config = std::fs::read_to_string(sandbox.path("vit/config.json")).unwrap();
    let config = config.replace("\"hidden_size\": 16", "\"hidden_size\": 144");
    let config = config.replace("\"intermediate_size\": 24", "\"intermediate_size\": 576");
    let layers = format!("\"num_hidden_layers\": {LAYERS}");
    sandbox.write("vit/config.json", config.replace("\"num_hidden_layers\": 2", &layers));
    sandbox
}

#[test]
fn a_run_by_block_has_one_block_of_an_image_network_in_memory() {
    const BLOCK_BYTES: u64 = 4 * (4 * 144 * 144 + 2 * 144 * 576);
    let sandbox = wide_vit();
    let peak = |flags: &str| {
        let line = "eval vit --data images.safetensors --device cpu --batch-size 8 --quiet --trace trace.json";
        sandbox.ok(&format!("{line} {flags}"));
        let trace: Value = serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events.filter_map(|event| event["args"]["peak_bytes"].as_u64()).max().unwrap()
    };
    let (whole, parts) = (peak(""), peak("--offload"));
    assert!(whole > parts + 4 * BLOCK_BYTES, "{whole} and {parts}, {BLOCK_BYTES} a block");
    let limit = parts + 2 * BLOCK_BYTES;
    assert!(peak(&format!("--offload --memory-limit {limit}B")) <= limit);
    let refused = sandbox.run("eval vit --data images.safetensors --device cpu --memory-limit 100kB --offload");
    refused.assert_fails(6, &["memory.limit", "expected at most", "raise the limit"]);
}

#[test]
fn images_that_do_not_decode_are_left_out_of_a_run_by_block() {
    let sandbox = images("vit");
    copy(&repository().join("fixtures/models/images"), &sandbox.path("folder"));
    let line = "calibrate vit --data folder -o stats --device cpu --offload";
    let found = sandbox.json(line);
    assert_eq!(found["n_skipped"], 1, "{found}");
    let strict = sandbox.run(&format!("{line} --force --strict"));
    strict.assert_fails(4, &["damaged.png"]);
}
