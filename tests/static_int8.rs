//! Static int8: compressed directories whose activations have fixed grids.
#![cfg(feature = "model")]

use crate::onnx_static::digits;
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{stored_tensors_of, tensors_of};

const DATA: &str = "digits-data.safetensors";
const GRIDS: &str = "briquette-activations.json";
const OTHERS: &str = "--format compressed-tensors --allow-untested";
const STATIC: &str = "--quantize int8-static --data digits-data.safetensors --samples 200 --quiet";

fn grids(sandbox: &Sandbox, output: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(sandbox.path(output).join(GRIDS)).unwrap()).unwrap()
}

/// Returns a text encoder, and texts.
fn bert() -> Sandbox {
    let sandbox = Sandbox::with("models/bert-tiny");
    copy(&repository().join("fixtures/models/sentences.txt"), &sandbox.path("text.txt"));
    sandbox
}

fn metric(sandbox: &Sandbox, line: &str, name: &str) -> f64 {
    sandbox.json(line)["metrics"][name].as_f64().unwrap_or_else(|| panic!("{line}: no {name}"))
}

#[test]
fn static_outputs_keep_classes_and_are_the_same_at_any_thread_count() {
    let sandbox = digits();
    for threads in [1, 2] {
        sandbox.ok(&format!("compress digits -o out{threads} {STATIC} --threads {threads}"));
    }
    sandbox.ok("verify out1");
    for file in ["model.briquette.safetensors", "briquette.json", GRIDS] {
        let [one, two] = ["out1", "out2"].map(|out| std::fs::read(sandbox.path(out).join(file)).unwrap());
        assert_eq!(one, two, "{file}");
    }
    let found = grids(&sandbox, "out1");
    let names: Vec<&str> = found["values"].as_object().unwrap().keys().map(String::as_str).collect();
    assert!(names.len() >= 5 && names.contains(&"images"), "{names:?}");
    let manifest = std::fs::read_to_string(sandbox.path("out1/briquette.json")).unwrap();
    assert!(manifest.contains("\"version\": 8") && manifest.contains("\"activations\": \"int8-static\""), "{manifest}");
    let [own, of_floats] =
        ["out1", "digits"].map(|model| metric(&sandbox, &format!("eval {model} --data {DATA}"), "accuracy"));
    assert!((own - of_floats).abs() < 0.01, "{own} and {of_floats}");
    let agreement = metric(&sandbox, &format!("eval out1 --against digits --data {DATA}"), "agreement");
    assert!((0.98..1.0).contains(&agreement), "activations are rounded: {agreement}");
}

#[test]
fn each_range_gives_other_grids_and_layers_may_stay_floats() {
    let sandbox = digits();
    let mut all = Vec::new();
    for range in ["minmax", "percentile", "mse", "entropy"] {
        sandbox.ok(&format!("compress digits -o {range} {STATIC} --activation-range {range}"));
        all.push(grids(&sandbox, range)["values"].to_string());
    }
    all.sort();
    all.dedup();
    assert!(all.len() >= 3, "{all:?}");
    sandbox.ok(&format!("compress digits -o some {STATIC} --exclude conv1.weight"));
    let names = |out: &str| grids(&sandbox, out)["values"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(!names("some").contains(&"images".to_string()) && names("mse").len() > names("some").len());
    metric(&sandbox, &format!("eval some --data {DATA}"), "accuracy");
}

#[test]
fn other_storage_keeps_codes_and_grids() {
    let sandbox = digits();
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    sandbox.ok("export out --to briquette --storage entropy -o smaller --quiet");
    assert_eq!(grids(&sandbox, "out"), grids(&sandbox, "smaller"));
    let eval = |out: &str| metric(&sandbox, &format!("eval {out} --against digits --data {DATA} --threads 1"), "kl");
    assert_eq!(eval("out"), eval("smaller"));
    sandbox.ok("export out --to dense -o dense --quiet");
    assert!(!sandbox.path("dense").join(GRIDS).exists(), "floats have no grids");
}

#[test]
fn residual_networks_run_on_codes_with_the_classes_of_the_original() {
    let sandbox = Sandbox::with("models/resnet18-tiny.pth");
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    sandbox.ok("compress resnet18-tiny.pth -o out --quantize int8-static --data images --quiet");
    let found = grids(&sandbox, "out");
    for value in ["images", "maxpool", "layer1.0.bn2", "layer4.1.relu", "avgpool"] {
        assert!(found["values"].get(value).is_some(), "{value}: {found}");
    }
    let line = "eval out --against resnet18-tiny.pth --data images --threads 1";
    assert!(metric(&sandbox, line, "kl") < 0.01, "{}", sandbox.json(line));
}

#[test]
fn convolutional_families_keep_their_outputs() {
    for (family, n_least) in [
        ("efficientnet_lite", 5),
        ("mobilenet_v2", 5),
        ("mobilenet_v2-transformers", 5),
        ("mobilenet_v3-small", 3),
        ("densenet", 3),
        ("vgg_bn", 3),
        ("resnet-basic", 3),
    ] {
        let sandbox = Sandbox::with(&format!("families/{family}"));
        copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
        let flags = "--quantize int8-static --data images --activation-range minmax --quiet";
        sandbox.ok(&format!("compress {family} -o out {flags}"));
        let n = grids(&sandbox, "out")["values"].as_object().unwrap().len();
        assert!(n >= n_least, "{family}: {n}");
        let line = format!("eval out --against {family} --data images --threads 1");
        let cosine = metric(&sandbox, &line, "cosine");
        assert!(cosine > 0.99, "{family}: {cosine}");
    }
}

#[test]
fn linear_layers_of_networks_with_attention_have_a_grid_each() {
    let sandbox = bert();
    let of_texts = "--data text.txt --max-length 16 --quiet";
    sandbox.ok(&format!("compress bert-tiny -o out --quantize int8-static --quantize-roles linear {of_texts}"));
    sandbox.ok("compress bert-tiny -o weights --quantize int8 --quantize-roles linear --quiet");
    sandbox.ok("verify out");
    let found = grids(&sandbox, "out");
    let grid = |layer: &str| found["layers"][format!("encoder.layer.0.{layer}.weight")].clone();
    let operands: Vec<&String> = found["values"].as_object().unwrap().keys().collect();
    let expected =
        [0, 1].map(|layer| ["key", "query", "value"].map(|of| format!("encoder.layer.{layer}.attention.self.{of}")));
    assert_eq!(operands, expected.as_flattened().iter().collect::<Vec<_>>(), "{found}");
    assert!(found["values"].as_object().unwrap().values().all(|grid| grid["zero"] == 128) && found["version"] == 2);
    assert_eq!(grid("attention.self.query"), grid("attention.self.value"));
    assert_ne!(grid("attention.self.query"), grid("output.dense"));
    let line = |out: &str| format!("eval {out} --against bert-tiny --data text.txt --max-length 16");
    let [cosine, of_weights] = ["out", "weights"].map(|out| metric(&sandbox, &line(out), "cosine"));
    assert!(cosine > 0.99 && cosine != of_weights, "{cosine}, weights alone {of_weights}");

    sandbox.write(
        "factors.toml",
        "[model]\npath = \"bert-tiny\"\n[output]\npath = \"factors\"\n[calibration]\ndata = \"text.txt\"\nmax_length = 16\n\
         [[stage]]\nkind = \"factorize\"\nenergy = 0.3\ninclude = [\"**.output.dense.weight\"]\n\
         [[stage]]\nkind = \"quantize\"\nscheme = \"int8-static\"\nroles = [\"linear\"]\n",
    );
    sandbox.ok("run factors.toml --quiet");
    let found = grids(&sandbox, "factors");
    let names: Vec<&str> = found["layers"].as_object().unwrap().keys().map(String::as_str).collect();
    let has = |word: &str| names.iter().any(|name| name.contains(word));
    assert!(has("query") && !has("output.dense"), "a factor multiplies another input: {names:?}");

    let sandbox = Sandbox::with("families/vit");
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    sandbox.ok("compress vit -o out --quantize int8-static --data images --quiet");
    let manifest = std::fs::read_to_string(sandbox.path("out/briquette.json")).unwrap();
    assert!(
        manifest.contains("\"activations\": \"int8-dynamic-asymmetric\"")
            && manifest.contains("\"activations\": \"int8-static\"")
    );
    let cosine = metric(&sandbox, "eval out --against vit --data images", "cosine");
    assert!(cosine > 0.99, "{cosine}");
}

#[test]
fn compressed_tensors_has_the_grid_of_each_layer_beside_its_codes() {
    let sandbox = bert();
    let flags = "--quantize int8-static --quantize-roles linear --data text.txt --max-length 16 --quiet";
    sandbox.ok(&format!("compress bert-tiny -o out {flags} --format compressed-tensors"));
    sandbox.ok(&format!("compress bert-tiny -o own {flags}"));
    sandbox.ok("export own --to compressed-tensors -o exported --quiet");
    sandbox.ok("verify out");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("out/config.json")).unwrap()).unwrap();
    let inputs = &config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
    assert_eq!((&inputs["dynamic"], &inputs["strategy"]), (&false.into(), &"tensor".into()), "{inputs}");
    let found = stored_tensors_of(&sandbox.path("out/model.safetensors"));
    let layers = grids(&sandbox, "out")["layers"].clone();
    assert_eq!(layers, grids(&sandbox, "own")["layers"]);
    for (weight, grid) in layers.as_object().unwrap() {
        let part = |name: &str| found[&weight.replace(".weight", name)].clone();
        let (scale, zero) = (part(".input_scale"), part(".input_zero_point"));
        assert_eq!(f64::from(scale.floats()[0]), grid["scale"].as_f64().unwrap(), "{weight}");
        assert_eq!(i64::from(zero.bytes[0] as i8) + 128, grid["zero"].as_i64().unwrap(), "{weight}");
    }
    let line = |out: &str| format!("eval {out} --against bert-tiny --data text.txt --max-length 16");
    let [out, own, exported] = ["out", "own", "exported"].map(|out| metric(&sandbox, &line(out), "cosine"));
    assert_eq!(own, exported);
    for file in ["out/briquette.json", "out/briquette-activations.json", "exported/briquette.json"] {
        std::fs::remove_file(sandbox.path(file)).unwrap();
    }
    let found = ["out", "exported"].map(|out| metric(&sandbox, &line(out), "cosine"));
    assert_eq!(found[0], out, "the grids are read from the weight file");
    let apart = (found[1] - own).abs();
    assert!(apart > 0.0 && apart < 1e-4, "queries, keys and values have their grids in the other file: {apart}");
}

pub(crate) const TRAINED: &str = r#"
model = { path = "digits" }
output = { path = "trained" }
calibration = { data = "digits-data.safetensors", samples = 200 }
data = { train = "digits-data.safetensors", eval = "digits-data.safetensors" }
[[stage]]
kind = "distill"
loss = [{ kind = "logits", weight = 0.7 }, { kind = "labels", weight = 0.3 }]
epochs = 2
learning_rate = 1e-4
quantization_aware = true
[[stage]]
kind = "quantize"
scheme = "int8-static"
[[stage]]
kind = "evaluate"
"#;

#[test]
fn a_training_with_static_activations_keeps_its_grids_and_classes() {
    let sandbox = digits();
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    sandbox.write("recipe.toml", TRAINED);
    sandbox.ok("distill recipe.toml --quiet");
    sandbox.ok("verify trained");
    assert_eq!(grids(&sandbox, "out"), grids(&sandbox, "trained"), "ranges of the original");
    let agreement = metric(&sandbox, &format!("eval trained --against digits --data {DATA}"), "agreement");
    assert!(agreement > 0.98, "{agreement}");
    let smaller = TRAINED
        .replace("kind = \"distill\"", "kind = \"distill\"\nstudent = { conv_channels = [16, 32], hidden_size = 40 }");
    sandbox.write("smaller.toml", smaller);
    sandbox.run("distill smaller.toml --force --quiet").assert_fails(2, &["model's own size"]);
}

#[test]
fn a_training_with_quantization_keeps_the_statistics_of_batch_norms() {
    let sandbox = Sandbox::with("models/resnet18-tiny.pth");
    copy(&repository().join("fixtures/models/images"), &sandbox.path("images"));
    std::fs::remove_file(sandbox.path("images/owl/damaged.png")).unwrap();
    let norm = "bn1.running_mean";
    let before = tensors_of(&sandbox.path("resnet18-tiny.pth"))[norm].clone();
    for (keys, is_kept) in [("quantization_aware = true", true), ("batch_norm = \"stored\"", true), ("", false)] {
        let quantize =
            if keys.starts_with('q') { "[[stage]]\nkind = \"quantize\"\nscheme = \"int8-dynamic\"\n" } else { "" };
        let text = "[model]\npath = \"resnet18-tiny.pth\"\n[output]\npath = \"out\"\n[data]\ntrain = \"images\"\n[memory]\nbatch_size = 2\n";
        let stage = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\nepochs = 1\nlearning_rate = 1e-4\n";
        sandbox.write("recipe.toml", format!("{text}{stage}{keys}\n{quantize}"));
        sandbox.ok("distill recipe.toml --force --quiet");
        assert_eq!(tensors_of(&sandbox.path("out"))[norm] == before, is_kept, "{keys}");
    }
    sandbox.write("recipe.toml", "[model]\npath = \"resnet18-tiny.pth\"\n[output]\npath = \"o\"\n[data]\ntrain = \"images\"\n[[stage]]\nkind = \"distill\"\nbatch_norm = \"kept\"\nloss = [{ kind = \"logits\" }]\n");
    sandbox.run("distill recipe.toml --quiet").assert_fails(2, &["batch_norm: found \"kept\""]);
}

#[test]
fn a_training_of_a_network_with_attention_keeps_the_grids_of_its_layers() {
    let sandbox = Sandbox::with("models/bert-tiny");
    let lines: Vec<String> =
        (0..64).map(|n| format!("the {n} cat sat on the {} mat while it rained", n * 7 % 13)).collect();
    sandbox.write("text.txt", lines.join("\n"));
    let recipe = "[model]\npath = \"bert-tiny\"\n[output]\npath = \"trained\"\n[calibration]\ndata = \"text.txt\"\n\
         [data]\ntrain = \"text.txt\"\neval = \"text.txt\"\n\
         [[stage]]\nkind = \"distill\"\nloss = [{ kind = \"embedding\" }]\nepochs = 2\nlearning_rate = 1e-5\n\
         dropout = false\nquantization_aware = true\n\
         [[stage]]\nkind = \"quantize\"\nscheme = \"int8-static\"\n[[stage]]\nkind = \"evaluate\"\n";
    sandbox.write("recipe.toml", recipe);
    sandbox.ok("distill recipe.toml --quiet");
    sandbox.ok("verify trained");
    sandbox.ok("compress bert-tiny -o out --quantize int8-static --data text.txt --quiet");
    assert_eq!(grids(&sandbox, "out"), grids(&sandbox, "trained"), "ranges of the original");
    let line = |out: &str| format!("eval {out} --against bert-tiny --data text.txt");
    let [before, after] = ["out", "trained"].map(|out| metric(&sandbox, &line(out), "cosine"));
    assert!(after > 0.9995 && after != before, "{after} after training, {before} without");
}

#[test]
fn wrong_models_data_formats_and_files_are_refused_in_one_line() {
    let sandbox = digits();
    let cases = [
        ("compress digits -o o --quantize int8-static", 2, "--data"),
        ("compress digits -o o --quantize int8 --data digits-data.safetensors --activation-range mse", 2, "--data"),
        (&*format!("compress digits -o o {STATIC} --activation-range max"), 2, "expected one of minmax"),
        (&*format!("compress digits -o o {STATIC} --format dense"), 2, "int8-static needs the format"),
        (
            &*format!("compress digits -o o {STATIC} --quantize-roles linear {}", OTHERS),
            2,
            "convolutional network has grids",
        ),
    ];
    for (line, code, phrase) in cases {
        sandbox.run(line).assert_fails(code, &[phrase]);
        assert!(!sandbox.path("o").exists(), "{line}");
    }
    sandbox.ok(&format!("compress digits -o out {STATIC}"));
    for (bytes, phrase) in [
        (None, "is missing, and layers have static int8"),
        (Some("{\"version\":1,\"values\":{\"nothing\":{\"scale\":1.0,\"zero\":0}}}"), "the file was changed"),
    ] {
        copy(&sandbox.path("out"), &sandbox.path("bad"));
        let path = sandbox.path("bad").join(GRIDS);
        match bytes {
            Some(bytes) => std::fs::write(path, bytes).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        sandbox.run(&format!("eval bad --data {DATA} --quiet")).assert_fails(4, &[phrase]);
        std::fs::remove_dir_all(sandbox.path("bad")).unwrap();
    }
}
