//! burnpack files record the layout of their weights, and commands use it.

use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::formats::{Checkpoint, WeightLayout};

fn layout(sandbox: &Sandbox, path: &str) -> Option<WeightLayout> {
    Checkpoint::open(&sandbox.path(path)).unwrap().layout()
}

#[cfg(feature = "model")]
fn with_data(fixture: &str, data: &str) -> Sandbox {
    let sandbox = Sandbox::with(fixture);
    let name = std::path::Path::new(data).file_name().unwrap().to_str().unwrap();
    copy(&repository().join("fixtures").join(data), &sandbox.path(name));
    sandbox
}

#[cfg(feature = "model")]
#[test]
fn a_model_exported_to_burnpack_evaluates_as_before() {
    for (fixture, model, data) in
        [("digits", "digits", "digits-data.safetensors"), ("models/bert-tiny", "bert-tiny", "models/sentences.txt")]
    {
        let sandbox = with_data(fixture, data);
        let data = data.rsplit('/').next().unwrap();
        sandbox.ok(&format!("export {model} --to burnpack -o out"));
        // The file alone replaces the directory, together with the small files that networks need.
        sandbox.ok(&format!("export {model} --to dense -o alone"));
        for name in ["briquette.json", "model.safetensors", "SHA256SUMS"] {
            std::fs::remove_file(sandbox.path("alone").join(name)).unwrap();
        }
        copy(&sandbox.path("out/model.bpk"), &sandbox.path("alone/model.bpk"));
        for out in ["out", "alone"] {
            let found = sandbox.json(&format!("eval {out} --data {data} --against {model} --device cpu"));
            let metrics = found["metrics"].as_object().unwrap();
            let same = metrics.get("cosine").or(metrics.get("agreement")).unwrap().as_f64().unwrap();
            assert!(same > 0.999_999, "{model} {out}: {metrics:?}");
        }
    }
}

#[test]
fn a_burnpack_file_records_its_layout() {
    let sandbox = Sandbox::with("digits");
    let before = tensors_of(&sandbox.path("digits"));
    sandbox.ok("export digits --to burnpack -o out");
    assert_eq!(layout(&sandbox, "out/model.bpk"), Some(WeightLayout::Torch));
    let diff = sandbox.json("diff digits out/model.bpk");
    assert!(diff["tensors"].as_array().unwrap().iter().all(|tensor| tensor["is_equal"] == true));
    // Compressing the burnpack file gives the same values as compressing the original.
    sandbox.ok("compress digits -o a --quantize int8");
    sandbox.ok("compress out/model.bpk -o b --quantize int8");
    assert_eq!(tensors_of(&sandbox.path("a")), tensors_of(&sandbox.path("b")));
    sandbox.ok("verify b --against out/model.bpk");
    assert_eq!(tensors_of(&sandbox.path("out/model.bpk")), before);
}

#[test]
fn a_burnpack_file_without_a_layout_has_the_one_of_burn() {
    let sandbox = Sandbox::new();
    let frozen = repository().join("fixtures/frozen/v0_1_0_burnpack");
    copy(&frozen, &sandbox.path("frozen"));
    assert_eq!(layout(&sandbox, "frozen/model.bpk"), Some(WeightLayout::Burn));
    assert_eq!(layout(&sandbox, "frozen"), None, "the manifest does not record a layout");
}

#[test]
fn every_format_records_the_burn_layout() {
    let sandbox = Sandbox::new();
    let square = Tensor::random("fc.weight", &[16, 16], 1);
    sandbox.write("net.safetensors", safetensors_of(&[square, Tensor::random("up.weight", &[16, 4], 2)]));
    assert_eq!(layout(&sandbox, "net.safetensors"), None);
    for (out, format) in [("bpk", "burnpack"), ("dense", "dense"), ("ours", "briquette")] {
        sandbox.ok(&format!("compress net.safetensors -o {out} --format {format} --layout burn --prune 0.1"));
        assert_eq!(layout(&sandbox, out), Some(WeightLayout::Burn), "{format}");
        sandbox.ok(&format!("verify {out} --against net.safetensors"));
    }
    for file in ["bpk/model.bpk", "dense/model.safetensors"] {
        assert_eq!(layout(&sandbox, file), Some(WeightLayout::Burn), "{file}");
    }
    // Conversions from file to file keep the layout.
    sandbox.ok("export bpk/model.bpk --to dense -o again");
    assert_eq!(layout(&sandbox, "again/model.safetensors"), Some(WeightLayout::Burn));
    sandbox.ok("compress again/model.safetensors -o small --quantize int8");
    sandbox.ok("compress bpk/model.bpk -o small-too --quantize int8");
    assert_eq!(tensors_of(&sandbox.path("small")), tensors_of(&sandbox.path("small-too")));
    sandbox.ok("compress net.safetensors -o declared --layout burn --prune 0.1 --quantize int8");
    let axis = |out: &str| {
        let checkpoint = Checkpoint::open(&sandbox.path(out)).unwrap();
        format!("{:?}", checkpoint.stored().unwrap().tensors[0].axis)
    };
    assert_eq!([axis("small"), axis("small-too"), axis("declared")], ["Last", "Last", "Last"]);
}
