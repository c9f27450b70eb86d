//! PyTorch files with more than a state dict: the model is compressed, the other entries are listed.

use crate::sandbox::Sandbox;
use crate::weights::tensors_of;
#[cfg(feature = "model")]
use crate::weights::{Tensor, safetensors_of};

fn with(names: &[&str]) -> Sandbox {
    let sandbox = Sandbox::with("pt");
    sandbox.write("recipe.toml", "[model]\npath = \"pt/ema.pt\"\nkey = \"model_ema\"\n[output]\npath = \"by-recipe\"\n[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n");
    for name in names {
        assert!(sandbox.path(name).exists(), "{name}");
    }
    sandbox
}

/// Returns the bytes of the weight file of an output.
fn weights(sandbox: &Sandbox, output: &str) -> Vec<u8> {
    let mut files = sandbox.files(output).into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
    files.next().unwrap().1
}

#[test]
fn every_format_of_pytorch_compresses_to_the_bytes_of_its_safetensors_twin() {
    let sandbox = with(&["pt/legacy.pt"]);
    let twins =
        [("legacy", "legacy"), ("tar", "legacy"), ("packed", "legacy"), ("script", "script"), ("training", "training")];
    for (name, twin) in twins {
        for (i, how) in ["--quantize int8", "--prune 0.5"].iter().enumerate() {
            sandbox.ok(&format!("compress pt/{name}.pt -o {name}-{i} {how} --layout torch"));
            sandbox.ok(&format!("verify {name}-{i} --against pt/{name}.pt"));
            sandbox.ok(&format!("compress pt/{twin}.expected.safetensors -o twin --force {how} --layout torch"));
            let values = |output: &str| tensors_of(&sandbox.path(output));
            assert_eq!(values(&format!("{name}-{i}")), values("twin"), "{name} {how}");
        }
    }
    // A file with its tensors in the same order gives the same bytes.
    sandbox.ok("export pt/training.pt --to dense -o dense");
    sandbox.ok("compress dense/model.safetensors -o twin --force --quantize int8 --layout torch");
    assert_eq!(weights(&sandbox, "training-0"), weights(&sandbox, "twin"));
}

#[test]
fn sizes_of_a_training_checkpoint_count_its_model_and_its_other_entries_are_listed() {
    let sandbox = with(&["pt/training.pt"]);
    let n_bytes = 4 * (6 * 4 + 4 + 4 * 2 + 2);
    let skipped = format!("optimizer, {} B: skipped", 2 * n_bytes + 16);
    let report = sandbox.json("compress pt/training.pt -o out --quantize int8");
    assert_eq!(report["before"]["file_bytes"], n_bytes);
    assert_eq!(report["before"]["tensor_bytes"], n_bytes);
    let remarks = report["notes"].to_string();
    for phrase in [skipped.as_str(), "best_acc, 4 B: skipped", "prefix \\\"module._orig_mod.\\\" is removed"] {
        assert!(remarks.contains(phrase), "{remarks}");
    }
    let summary = sandbox.ok("compress pt/training.pt -o out --force --quantize int8").stdout;
    assert!(summary.contains(&format!("{n_bytes} B → ")) && summary.contains("optimizer"), "{summary}");
    for line in ["inspect pt/training.pt", "plan pt/training.pt --quantize int8"] {
        let text = sandbox.ok(line).stdout;
        assert!(text.contains(&skipped) && text.contains("0.weight"), "{line}: {text}");
        assert!(!text.contains("module._orig_mod.0"), "{line}: {text}");
    }
    let found = sandbox.json("inspect pt/training.pt");
    assert_eq!(found["file_bytes"], n_bytes);
    assert_eq!(found["left_out"][0]["key"], "optimizer");
    assert_eq!(found["stripped_prefixes"], serde_json::json!(["module.", "_orig_mod."]));
}

#[test]
fn a_key_of_the_recipe_or_command_line_is_recorded_in_the_output() {
    let sandbox = with(&["pt/ema.pt"]);
    sandbox.ok("run recipe.toml");
    sandbox.ok("compress pt/ema.pt -o by-flag --key model_ema --cast f16");
    assert_eq!(weights(&sandbox, "by-recipe"), weights(&sandbox, "by-flag"));
    sandbox.ok("compress pt/ema.pt -o model --cast f16");
    assert_ne!(weights(&sandbox, "model"), weights(&sandbox, "by-flag"));
    for output in ["by-recipe", "by-flag", "model"] {
        sandbox.ok(&format!("verify {output} --against pt/ema.pt"));
        let found = sandbox.json(&format!("diff pt/ema.pt {output}"));
        let worst = found["tensors"][0]["error"]["relative"].as_f64().unwrap();
        assert!(worst < 1e-3 && found["only_in_first"] == serde_json::json!([]), "{output}: {found}");
    }
    let names = |line: &str| {
        let found = sandbox.json(line);
        let tensors = found["tensors"].as_array().unwrap();
        tensors.iter().map(|tensor| tensor["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let average = ["n_averaged", "0.weight", "0.bias", "1.weight", "1.bias"];
    assert_eq!(names("inspect pt/ema.pt --key model_ema"), average);
    assert_eq!(names("plan recipe.toml"), average);
    assert_eq!(names("export pt/ema.pt --key model_ema --to dense -o dense"), average);
    assert_eq!(names("inspect pt/ema.pt --strip-prefix 0."), ["weight", "bias", "1.weight", "1.bias"]);
    assert_eq!(names("inspect pt/training.pt --strip-prefix module.")[0], "_orig_mod.0.weight");
    let text = sandbox.ok("inspect pt/ema.pt").stdout;
    assert!(text.contains("model_ema, 160 B: skipped") && text.contains("key = \"model_ema\""), "{text}");
}

#[test]
fn a_missing_key_is_refused_in_one_line_with_the_available_keys() {
    let sandbox = with(&["pt/ema.pt"]);
    let cases = [
        ("inspect pt/ema.pt --key ema", 2, "expected one of \"model\", \"model_ema\", or \"\" for all"),
        ("plan pt/ema.pt --key ema --quantize int8", 2, "pt/ema.pt"),
        ("compress pt/ema.pt -o out --key ema --quantize int8", 2, "model_ema"),
        ("export pt/ema.pt --to dense -o out --key ema", 2, "model_ema"),
        ("diff pt/ema.pt pt/legacy.pt --key ema", 2, "key"),
        ("inspect pt/half.expected.safetensors --key model", 2, "only PyTorch files have keys"),
        (
            "diff pt/half.expected.safetensors pt/half.expected.safetensors --key model",
            2,
            "only PyTorch files have keys",
        ),
        ("inspect pt/ema.pt --strip-prefix net.", 2, "no name begins with \"net.\""),
    ];
    for (line, code, phrase) in cases {
        sandbox.run(line).assert_fails(code, &[phrase]);
    }
    assert!(!sandbox.path("out").exists());
    let schema = sandbox.ok("recipe schema").stdout;
    assert!(schema.contains("\"key\"") && schema.contains("\"strip_prefix\""));
}

#[test]
fn files_that_are_no_checkpoint_are_refused_with_a_remedy() {
    let sandbox = Sandbox::new();
    sandbox.write("tokenizer.json", r#"{"version": "1.0", "model": {"vocab": {}}}"#);
    sandbox.write("models--a--b/snapshots/1234/model.safetensors", b"x");
    sandbox.write("models--a--b/refs/main", "1234");
    for line in ["inspect M", "plan M --quantize int8"] {
        for (model, phrases) in [
            ("tokenizer.json", ["found JSON without a weight_map", "give its directory"]),
            ("models--a--b", ["the root of a cached model", "models--a--b/snapshots/1234"]),
            (".", ["a cache of models", "models--a--b/snapshots/1234"]),
        ] {
            sandbox.run(&line.replace('M', model)).assert_fails(4, &phrases);
        }
    }
}

#[test]
fn every_float8_type_is_copied_unchanged() {
    use crate::weights::{Tensor, safetensors_of};
    use briquette::core::DType;
    let sandbox = Sandbox::new();
    let dtypes = ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"];
    let one = |(i, name): (usize, &&str)| Tensor {
        name: format!("t{i}.weight"),
        dtype: DType::from_name(name).unwrap(),
        shape: vec![4, 4],
        bytes: (0..16).map(|byte| byte * 16 + i as u8).collect(),
    };
    let tensors: Vec<Tensor> =
        dtypes.iter().enumerate().map(one).chain([Tensor::random("w.weight", &[8, 8], 1)]).collect();
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    for how in ["--quantize int8", "--cast f16 --format dense"] {
        sandbox.ok(&format!("compress m.safetensors -o out --force {how}"));
        let found = tensors_of(&sandbox.path("out"));
        for tensor in &tensors[..dtypes.len()] {
            assert_eq!(&found[&tensor.name], tensor, "{how}");
        }
    }
}

/// A training checkpoint of the digits network: wrapped names, and an optimizer beside the model.
#[cfg(feature = "model")]
fn digits_in_training() -> Vec<u8> {
    use crate::archives::{dict, key, zip};
    use briquette::formats::{Checkpoint, TensorSource};
    let checkpoint = Checkpoint::open(&crate::sandbox::repository().join("fixtures/digits")).unwrap();
    let (mut items, mut entries) = (Vec::new(), Vec::new());
    for (index, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(index, 0, &mut bytes).unwrap();
        items.extend(key(&format!("module.{}", info.name)));
        items.extend(rebuilt(info.dtype.name(), index, &info.shape.0));
        entries.push((format!("m/data/{index}"), bytes));
    }
    let groups = [key("param_groups").as_slice(), b"]", &key("exp_avg"), &rebuilt("F32", 0, &[4])].concat();
    let root = [
        [key("epoch").as_slice(), b"K\x03"].concat(),
        [key("optimizer").as_slice(), b"}(", &groups, b"u"].concat(),
        [key("model").as_slice(), b"}(", &items, b"u"].concat(),
    ];
    let pickle = dict(&root.concat());
    let mut parts: Vec<(&str, &[u8])> = vec![("m/data.pkl", &pickle)];
    parts.extend(entries.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    zip(&parts)
}

/// Returns the pickle opcodes of a tensor that covers a whole storage.
#[cfg(feature = "model")]
fn rebuilt(dtype: &str, index: usize, shape: &[usize]) -> Vec<u8> {
    use crate::archives::key;
    let int = |n: usize| [b"J".as_slice(), &(n as i32).to_le_bytes()].concat();
    let tuple =
        |items: Vec<usize>| [b"(".as_slice(), &items.into_iter().flat_map(int).collect::<Vec<u8>>(), b"t"].concat();
    let strides = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
    let storage = match dtype {
        "F32" => "FloatStorage",
        "I64" => "LongStorage",
        other => panic!("{other}"),
    };
    [
        format!("ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n{storage}\n").as_bytes(),
        &key(&index.to_string()),
        &key("cpu"),
        &int(shape.iter().product()),
        b"tQK\0",
        &tuple(shape.to_vec()),
        &tuple(strides),
        b"\x89ccollections\nOrderedDict\n)RtR",
    ]
    .concat()
}

#[cfg(feature = "model")]
#[test]
fn a_training_checkpoint_with_wrapped_names_can_be_evaluated() {
    let sandbox = Sandbox::with("digits");
    let data = "digits-data.safetensors";
    crate::sandbox::copy(&crate::sandbox::repository().join("fixtures").join(data), &sandbox.path(data));
    sandbox.write("m/config.json", std::fs::read(sandbox.path("digits/config.json")).unwrap());
    sandbox.write("m/checkpoint.pth", digits_in_training());
    let agreement = |line: &str| sandbox.json(line)["metrics"]["agreement"].as_f64().unwrap();
    assert_eq!(agreement(&format!("eval m --data {data} --against digits")), 1.0);
    sandbox.ok("compress m -o out --cast f16");
    assert_eq!(agreement(&format!("eval out --data {data} --against m")), 1.0);
    sandbox.run(&format!("eval m --data {data} --key optimiser")).assert_fails(2, &["one of", "\"model\""]);
    sandbox.run(&format!("eval digits --data {data} --key model")).assert_fails(2, &["only PyTorch files have keys"]);
}

#[cfg(feature = "model")]
#[test]
fn a_fold_is_compared_with_the_chosen_tensors_of_the_file() {
    let sandbox = Sandbox::with("digits");
    let renamed = |(name, tensor): (String, Tensor)| Tensor { name: format!("net.{name}"), ..tensor };
    let tensors: Vec<Tensor> = tensors_of(&sandbox.path("digits")).into_iter().map(renamed).collect();
    sandbox.write("named/model.safetensors", safetensors_of(&tensors));
    sandbox.write("named/config.json", std::fs::read(sandbox.path("digits/config.json")).unwrap());
    sandbox.ok("compress named --strip-prefix net. --fold batch-norm -o out");
    sandbox.ok("compress digits --fold batch-norm -o expected");
    let [found, expected] = ["out", "expected"].map(|out| tensors_of(&sandbox.path(out)));
    assert!(found.len() == expected.len() && found.iter().all(|(name, tensor)| tensor.bytes == expected[name].bytes));
}
