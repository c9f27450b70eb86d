//! Files of a model may not lead out of its directory: links work inside it and in the hub's cache.

use crate::sandbox::Sandbox;
use crate::weights::{Random, safetensors_of, tensors_of, tiny};
use std::os::unix::fs::symlink;

/// Commands that read the weights of a model.
const READERS: [&str; 7] = [
    "inspect M",
    "graph M",
    "inspect M --zeros",
    "plan M --quantize int8",
    "compress M -o new --quantize int8",
    "export M --to dense -o new",
    "diff M M",
];

/// Checks that every reader of `model` reports that `link` leads to `target`, and changes no file.
fn assert_refused(sandbox: &Sandbox, lines: &[&str], model: &str, link: &str, target: &str) {
    let before = sandbox.files("");
    for line in lines {
        let line = line.replace('M', model);
        let outcome = sandbox.run(&line);
        outcome.assert_fails(4, &[&format!("{link}: leads to "), target, "outside of the model's directory"]);
        assert!(sandbox.files("") == before, "{line}");
    }
}

/// A directory `m` with a config, beside a secret file that is a valid checkpoint.
fn with_secret() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("secret/w.safetensors", safetensors_of(&tiny()));
    sandbox.write("m/config.json", "{}");
    sandbox
}

#[test]
fn weights_that_link_out_of_the_directory_are_refused() {
    for name in ["model.safetensors", "pytorch_model.bin", "odd.pt", "x.bpk"] {
        let sandbox = with_secret();
        symlink("../secret/w.safetensors", sandbox.path("m").join(name)).unwrap();
        assert_refused(&sandbox, &READERS, "m", &format!("m/{name}"), "secret/w.safetensors");
    }
}

#[test]
fn shards_and_indices_that_lead_out_of_the_directory_are_refused() {
    let index = |file: &str| {
        let names = tiny().into_iter().map(|tensor| (tensor.name, file.to_string())).collect();
        briquette::formats::index::to_json(&names, 1)
    };
    let link = |sandbox: &Sandbox, target: &str, name: &str| symlink(target, sandbox.path(name)).unwrap();
    let sandbox = with_secret();
    sandbox.write("m/model.safetensors.index.json", index("model-1.safetensors"));
    link(&sandbox, "../secret/w.safetensors", "m/model-1.safetensors");
    assert_refused(&sandbox, &READERS, "m", "m/model-1.safetensors", "secret/w.safetensors");
    assert_refused(&sandbox, &READERS, "m/model.safetensors.index.json", "m/model-1.safetensors", "secret/w");

    let sandbox = with_secret();
    sandbox.write("m/model.safetensors.index.json", index("sub/w.safetensors"));
    link(&sandbox, "../secret", "m/sub");
    assert_refused(&sandbox, &READERS, "m", "m/sub/w.safetensors", "secret/w.safetensors");

    let sandbox = with_secret();
    sandbox.write("secret/index.json", index("model-1.safetensors"));
    sandbox.write("m/model-1.safetensors", safetensors_of(&tiny()));
    link(&sandbox, "../secret/index.json", "m/model.safetensors.index.json");
    assert_refused(&sandbox, &READERS, "m", "m/model.safetensors.index.json", "secret/index.json");
}

#[test]
fn a_config_that_links_out_of_the_directory_is_refused() {
    let sandbox = Sandbox::with("digits");
    sandbox.write("secret.json", "{}");
    std::fs::remove_file(sandbox.path("digits/config.json")).unwrap();
    symlink("../secret.json", sandbox.path("digits/config.json")).unwrap();
    assert_refused(&sandbox, &READERS, "digits", "digits/config.json", "secret.json");
}

#[test]
fn files_of_an_output_that_link_out_of_it_are_refused_and_do_not_verify() {
    for format in ["briquette", "dense", "burnpack", "compressed-tensors"] {
        let sandbox = Sandbox::with("digits");
        sandbox.ok(&format!("compress digits -o out --quantize int8 --format {format} --allow-untested"));
        let names: Vec<String> = sandbox.files("out").into_keys().filter(|name| !name.starts_with("report")).collect();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            let (file, moved) = (sandbox.path("out").join(&name), sandbox.path(&format!("elsewhere-{name}")));
            std::fs::rename(&file, &moved).unwrap();
            symlink(format!("../elsewhere-{name}"), &file).unwrap();
            let link = format!("out/{name}");
            assert_refused(&sandbox, &["verify M"], "out", &link, &format!("elsewhere-{name}"));
            // Not every reader reads config.json.
            if name != "config.json" {
                assert_refused(&sandbox, &READERS, "out", &link, &format!("elsewhere-{name}"));
            }
            std::fs::remove_file(&file).unwrap();
            std::fs::rename(&moved, &file).unwrap();
        }
        sandbox.ok("verify out");
        std::fs::rename(sandbox.path("out/report.json"), sandbox.path("report.json")).unwrap();
        symlink("../report.json", sandbox.path("out/report.json")).unwrap();
        assert_refused(&sandbox, &["report M"], "out", "out/report.json", "report.json");
    }
}

#[test]
fn named_paths_and_links_inside_the_directory_are_followed() {
    let sandbox = Sandbox::with("digits");
    std::fs::create_dir(sandbox.path("digits/store")).unwrap();
    std::fs::rename(sandbox.path("digits/model.safetensors"), sandbox.path("digits/store/1")).unwrap();
    symlink("store/1", sandbox.path("digits/model.safetensors")).unwrap();
    symlink("digits", sandbox.path("link")).unwrap();
    symlink("link/model.safetensors", sandbox.path("link.safetensors")).unwrap();
    for model in ["digits", "link", "link.safetensors", "link/model.safetensors"] {
        sandbox.ok(&format!("compress {model} -o out --quantize int8 --force"));
        sandbox.ok(&format!("verify out --against {model}"));
    }
}

#[test]
fn models_in_the_hub_cache_are_read() {
    let sandbox = Sandbox::with("digits-sharded");
    let (blobs, snapshot) = ("hub/models--a--b/blobs", "hub/models--a--b/snapshots/0123");
    std::fs::create_dir_all(sandbox.path(blobs)).unwrap();
    std::fs::create_dir_all(sandbox.path(snapshot)).unwrap();
    let mut random = Random(7);
    for name in sandbox.files("digits-sharded").into_keys() {
        let hash = format!("{:016x}", random.next());
        std::fs::copy(sandbox.path("digits-sharded").join(&name), sandbox.path(blobs).join(&hash)).unwrap();
        symlink(format!("../../blobs/{hash}"), sandbox.path(snapshot).join(name)).unwrap();
    }
    assert_eq!(tensors_of(&sandbox.path(snapshot)), tensors_of(&sandbox.path("digits-sharded")));
    for model in [snapshot.to_string(), format!("{snapshot}/model.safetensors.index.json")] {
        sandbox.ok(&format!("compress {model} -o out --quantize int8 --force"));
        sandbox.ok(&format!("verify out --against {model}"));
    }
    sandbox.write("hub/other", "x");
    let config = sandbox.path(snapshot).join("config.json");
    std::fs::remove_file(&config).unwrap();
    symlink("../../../other", &config).unwrap();
    assert_refused(&sandbox, &READERS, snapshot, "config.json", "hub/other");
}

#[cfg(feature = "model")]
#[test]
fn small_files_of_an_evaluation_must_stay_inside_the_directory() {
    let eval = "eval M --data sentences.txt --device cpu";
    for name in ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
    {
        let sandbox = Sandbox::with("models/bert-tiny");
        let text = crate::sandbox::repository().join("fixtures/models/sentences.txt");
        std::fs::copy(text, sandbox.path("sentences.txt")).unwrap();
        sandbox.ok(&eval.replace('M', "bert-tiny"));
        let (path, outside) = (sandbox.path("bert-tiny").join(name), sandbox.path("outside.json"));
        std::fs::rename(&path, &outside).unwrap();
        symlink(&outside, &path).unwrap();
        assert_refused(&sandbox, &[eval], "bert-tiny", &format!("bert-tiny/{name}"), "outside.json");
    }
}
