//! Models with older names, without heads, and data that a network cannot take.

use super::models::{configure, rename, with};
use super::{Decoder, Encoder, Images, flags};
use crate::sandbox::{Sandbox, copy, repository};
use crate::weights::{Tensor, safetensors_of, tensors_of};
use serde_json::json;

#[test]
fn names_and_keys_of_older_files_are_known() {
    let bert = with("bert-mlm");
    rename(&bert, |name| {
        Some(name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))
    });
    let gpt2 = with("gpt2");
    rename(&gpt2, |name| Some(name.strip_prefix("transformer.").unwrap_or(name).to_string()));
    let opt = with("opt");
    rename(&opt, |name| Some(name.replace("model.decoder.", "decoder.")));
    let qwen3 = with("qwen3");
    configure(&qwen3, json!({ "rope_parameters": null, "rope_theta": 10000.0, "rope_scaling": null }));
    for (sandbox, fixture, kind) in
        [(bert, "bert-mlm", Encoder), (gpt2, "gpt2", Decoder), (opt, "opt", Decoder), (qwen3, "qwen3", Decoder)]
    {
        copy(&with(fixture).path("m"), &sandbox.path("new"));
        let found = sandbox.json(&format!("eval m --against new {}", flags(kind)[1]));
        let metric = |name: &str| found["metrics"][name].as_f64().unwrap();
        let far = if kind == Decoder { metric("kl") } else { 1.0 - metric("cosine") };
        assert!(far.abs() < 1e-6, "{fixture}: {far}");
    }
}

#[test]
fn a_model_without_the_head_of_its_task_has_a_graph_and_one_line_of_error() {
    let base = |name: &str, prefix: &str, head: &str| match name.starts_with(head) {
        true => None,
        false => Some(name.strip_prefix(prefix).unwrap_or(name).to_string()),
    };
    for (fixture, class, prefix, head, phrase) in [
        ("gpt2", "GPT2Model", "transformer.", "lm_head", "...ForCausalLM"),
        ("opt", "OPTModel", "model.", "lm_head", "...ForCausalLM"),
        ("dinov2", "Dinov2Model", "dinov2.", "classifier", "...ForImageClassification"),
        ("convnext", "ConvNextModel", "convnext.", "classifier", "...ForImageClassification"),
        ("vit-base", "ViTModel", "vit.", "classifier", "...ForImageClassification"),
    ] {
        let sandbox = with(fixture);
        configure(&sandbox, json!({ "architectures": [class] }));
        rename(&sandbox, |name| base(name, prefix, head));
        sandbox.ok("graph m");
        sandbox.ok("compress m -o int8 --quantize int8");
        let data = if phrase.contains("Image") { "--data images" } else { "--data held.txt" };
        for command in ["eval m", "calibrate m -o s.safetensors"] {
            sandbox.run(&format!("{command} {data}")).assert_fails(4, &["m: it has no ", phrase]);
        }
    }
}

#[test]
fn images_that_a_network_cannot_take_are_one_line() {
    for (fixture, size, phrase) in [
        ("convnext", 8, "data.size: found 8, but this network takes images of at least 16x16"),
        ("densenet", 7, "but this network takes images of at least"),
        ("vgg", 4, "data.size: found 4, but this network takes images of at least 8x8"),
        ("vit", 8, "crop 16x16 is not within size 8"),
    ] {
        let sandbox = with(fixture);
        sandbox.run(&format!("eval m --data images --size {size}")).assert_fails(2, &[phrase]);
    }
    // A network for images of one size takes no other, whatever the size of the usual crop is.
    let sandbox = with("vit");
    configure(&sandbox, json!({ "image_size": 224, "patch_size": 56 }));
    let larger = |tensor: Tensor| match tensor.name.ends_with("projection.weight") {
        true => Tensor::random(&tensor.name, &[16, 3, 56, 56], 1),
        false => tensor,
    };
    let tensors: Vec<Tensor> = tensors_of(&sandbox.path("m")).into_values().map(larger).collect();
    sandbox.write("m/model.safetensors", safetensors_of(&tensors));
    sandbox.run("eval m --data images --size 64").assert_fails(2, &["crop 224x224 is not within size 64"]);
    sandbox.run("eval m --data images --tile 64").assert_fails(2, &["this one is for 224x224"]);
    let recipe = |crop: &str| {
        format!(
            "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[data]\neval = \"images\"\n{crop}\n[[stage]]\n\
             kind = \"cast\"\ndtype = \"f16\"\n[[stage]]\nkind = \"evaluate\"\n"
        )
    };
    sandbox.write("recipe.toml", recipe("crop = [64, 64]"));
    sandbox.run("run recipe.toml").assert_fails(2, &["data.crop: found 64x64, but this network takes only 224x224"]);
    // The preparation of the file of the model: ViT takes whole images, and values from -1 to 1.
    let agreement = |sandbox: &Sandbox| sandbox.json("eval m --data images --against n")["metrics"]["kl"].clone();
    copy(&sandbox.path("m"), &sandbox.path("n"));
    let normal = json!({ "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0] });
    assert_eq!(agreement(&sandbox), 0.0);
    sandbox.write("m/preprocessor_config.json", normal.to_string());
    assert!(agreement(&sandbox).as_f64().unwrap() > 0.0);
    sandbox.write("m/preprocessor_config.json", json!({ "size": { "height": 0, "width": 9 } }).to_string());
    sandbox.run("eval m --data images").assert_fails(4, &["m/preprocessor_config.json: a size of images is 0"]);
}

#[test]
fn a_model_type_whose_names_belong_to_torchvision_is_explained() {
    let sandbox = with("efficientnet");
    sandbox.write("m/config.json", json!({ "model_type": "efficientnet" }).to_string());
    sandbox.run("graph m").assert_fails(4, &["found model_type \"efficientnet\"", "EfficientNet (of torchvision)"]);
    sandbox.ok("compress m -o out --quantize int8");
    // MobileNetV2 has a graph under both names.
    let sandbox = with("mobilenet_v2");
    sandbox.write("m/config.json", json!({ "model_type": "mobilenet_v2" }).to_string());
    sandbox.ok("graph m");
}

#[test]
fn layers_stored_by_input_cannot_be_factorized() {
    let sandbox = with("gpt2");
    let recipe = "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[[stage]]\nkind = \"factorize\"\nbytes = 0.5\n";
    sandbox.write("recipe.toml", recipe);
    sandbox.run("run recipe.toml").assert_fails(2, &["found weights [in, out], such as transformer.h.0.attn.c_attn"]);
}

#[test]
fn the_guide_lists_every_family_and_model_type() {
    let page = std::fs::read_to_string(repository().join("docs/guide/src/network.md")).unwrap();
    let section = page.split("## Families").nth(1).unwrap().split("\n## ").next().unwrap();
    for family in briquette::graph::FAMILIES {
        assert!(section.contains(family.name), "{}", family.name);
        for model_type in family.model_types {
            assert!(section.contains(&format!("`{model_type}`")), "{model_type}");
        }
    }
}

#[test]
fn a_factorized_model_has_a_graph_and_runs() {
    for (fixture, kind) in [("roberta", Encoder), ("qwen3", Decoder), ("vit", Images), ("vgg", Images)] {
        let sandbox = with(fixture);
        let recipe = "[model]\npath = \"m\"\n[output]\npath = \"out\"\n[[stage]]\nkind = \"factorize\"\nbytes = 0.9\n";
        sandbox.write("recipe.toml", recipe);
        sandbox.ok("run recipe.toml");
        let whole = sandbox.json("graph m")["totals"]["n_parameters"].clone();
        assert_eq!(sandbox.json("graph out")["totals"]["n_parameters"], whole, "{fixture}: as of full rank");
        let found = sandbox.json("inspect out");
        assert_eq!(found["roles"]["from"], "graph", "{found}");
        let downs = found["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|tensor| tensor["name"].as_str().unwrap().ends_with(".down.weight"));
        let roles: Vec<_> = downs.map(|tensor| tensor["role"].clone()).collect();
        assert!(!roles.is_empty() && roles.iter().all(|role| role == "linear"), "{roles:?}");
        sandbox.ok(&format!("eval out --against m {}", flags(kind)[1]));
        sandbox.ok("compress out -o int8 --quantize int8-dynamic");
        sandbox.ok(&format!("eval int8 --against out {}", flags(kind)[1]));
    }
}
