//! Roles of tensors in families of transformers, and what stages do to each role.

use crate::sandbox::Sandbox;
use crate::weights::{Tensor, safetensors_of, tensors_of};
use briquette::core::DType;
use briquette::formats::{Checkpoint, TensorSource};
use serde_json::Value;
use std::path::Path;

fn of<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == name).unwrap()
}

/// Writes a directory with one safetensors file and a configuration.
fn model(sandbox: &Sandbox, name: &str, config: &str, tensors: &[Tensor]) {
    sandbox.write(&format!("{name}/config.json"), config);
    sandbox.write(&format!("{name}/model.safetensors"), safetensors_of(tensors));
}

#[test]
fn class_tokens_positions_and_bias_tables_are_unchanged() {
    let sandbox = Sandbox::new();
    let unchanged = [
        Tensor::random("vit.embeddings.cls_token", &[1, 1, 8], 1),
        Tensor::random("vit.embeddings.distillation_token", &[1, 1, 8], 2),
        Tensor::random("vit.embeddings.position_embeddings", &[1, 5, 8], 3),
        Tensor::random("pos_embed", &[1, 5, 8], 4),
        Tensor::random("block.0.layer.0.SelfAttention.relative_attention_bias.weight", &[32, 4], 5),
        Tensor::random("swin.attention.self.relative_position_bias_table", &[49, 2], 6),
        Tensor::random("mixer.A_log", &[16, 5], 7),
        Tensor::random("conv.parametrizations.weight.original0", &[1, 1, 6], 8),
        Tensor::random("mlp.experts.gate_up_proj_bias", &[3, 12], 9),
        Tensor::random("mlp.router.weight", &[3, 8], 10),
    ];
    let changed = [
        Tensor::random("vit.embeddings.patch_embeddings.projection.weight", &[8, 3, 4, 4], 11),
        Tensor::random("classifier.weight", &[4, 8], 12),
    ];
    sandbox.write("m.safetensors", safetensors_of(&[&unchanged[..], &changed].concat()));
    let plan = sandbox.json("plan m.safetensors --prune 0.5 --quantize int8");
    for tensor in &unchanged {
        let found = of(&plan, &tensor.name);
        assert_eq!((&found["prune"], &found["quantize"]), (&Value::Null, &Value::Null), "{found}");
    }
    assert_eq!(plan["unsure"], Value::Array(vec![]));
    sandbox.ok("compress m.safetensors -o out --prune 0.5 --quantize int8");
    let after = tensors_of(&sandbox.path("out"));
    unchanged.iter().for_each(|tensor| assert_eq!(&after[&tensor.name], tensor));
    changed.iter().for_each(|tensor| assert_ne!(&after[&tensor.name], tensor));
    sandbox.ok("verify out --against m.safetensors");
}

#[test]
fn lookup_tables_and_positions_are_not_pruned() {
    let sandbox = Sandbox::new();
    let tables =
        ["tok_emb", "pos_emb", "item_emb", "word_emb", "speaker_emb", "emb_g", "positions", "mask_token", "bag"];
    let more = ["mask_tokens", "iou_token", "codebook", "dlrm.emb_l.0", "codebooks.3"];
    let bare = ["level_embed", "pe.positional_embedding", "dec.position_embeddings"];
    let names = tables.iter().chain(&more).map(|name| format!("{name}.weight"));
    let tables: Vec<Tensor> = names.zip(1..).map(|(name, seed)| Tensor::random(&name, &[12, 8], seed)).collect();
    let bare: Vec<Tensor> = bare.iter().zip(50..).map(|(name, seed)| Tensor::random(name, &[6, 8], seed)).collect();
    let layers: [(&str, &[usize]); 4] = [
        ("layernorm_qkv.weight", &[24, 8]),
        ("norm_proj.weight", &[8, 8]),
        ("convnormrelu1.0.weight", &[8, 32, 1, 1]),
        ("layernorm_mlp.fc1_weight", &[16, 8]),
    ];
    let layers: Vec<Tensor> = layers.iter().map(|(name, shape)| Tensor::random(name, shape, 9)).collect();
    sandbox.write("m.safetensors", safetensors_of(&[&tables[..], &bare, &layers].concat()));
    sandbox.ok("compress m.safetensors -o out --prune 0.5 --quantize int8");
    let after = tensors_of(&sandbox.path("out"));
    let n_zeros = |name: &str| after[name].floats().iter().filter(|value| **value == 0.0).count();
    tables.iter().for_each(|tensor| assert!(n_zeros(&tensor.name) < 4, "{}", tensor.name));
    bare.iter().for_each(|tensor| assert_eq!(&after[&tensor.name], tensor));
    layers.iter().for_each(|tensor| assert!(2 * n_zeros(&tensor.name) >= tensor.floats().len(), "{}", tensor.name));
}

/// Returns the square of the largest relative error of any output channel of filters `[in, out, ..]`.
fn worst_output(before: &Tensor, after: &Tensor) -> f32 {
    let (n_out, run) = (before.shape[1], before.shape[2..].iter().product::<usize>());
    let mut sums = vec![(0.0, 0.0); n_out];
    for (place, (was, is)) in before.floats().into_iter().zip(after.floats()).enumerate() {
        let (error, whole) = &mut sums[place / run % n_out];
        (*error, *whole) = (*error + (was - is) * (was - is), *whole + was * was);
    }
    sums.iter().map(|(error, whole)| error / whole).fold(0.0, f32::max)
}

#[test]
fn each_output_of_a_transposed_convolution_gets_a_scale() {
    let sandbox = Sandbox::new();
    // The outputs differ by a factor of 100: scales per input would round the small ones to zero.
    let values = Tensor::random("up.weight", &[12, 6, 2, 2], 1).floats().into_iter().enumerate();
    let up = Tensor::f32("up.weight", &[12, 6, 2, 2], values.map(|(i, x)| if i / 4 % 6 == 0 { x / 100.0 } else { x }));
    let tensors = [up, Tensor::random("up.bias", &[6], 2), Tensor::random("conv.weight", &[8, 12, 3, 3], 3)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    for what in ["--quantize int8", "--prune-pattern 2:4 --quantize int8", "--quantize int4-g8 --exclude conv.weight"] {
        sandbox.ok(&format!("compress m.safetensors -o out --force {what}"));
        sandbox.ok("verify out --against m.safetensors");
        let after = &tensors_of(&sandbox.path("out"))["up.weight"];
        assert!(worst_output(&tensors[0], after) < if what.contains("2:4") { 0.35 } else { 0.02 }, "{what}");
    }
    sandbox.ok("compress m.safetensors -o plain --quantize int8");
    assert!(worst_output(&tensors[0], &tensors_of(&sandbox.path("plain"))["up.weight"]) < 1e-4);
    assert_eq!(scales_and_axis(&sandbox.path("plain"), "up.weight"), (6, "Second".into()));
    assert_eq!(scales_and_axis(&sandbox.path("plain"), "conv.weight"), (8, "First".into()));
    sandbox.ok("export plain --to dense -o dense");
    assert_eq!(tensors_of(&sandbox.path("dense"))["up.weight"], tensors_of(&sandbox.path("plain"))["up.weight"]);
}

#[test]
fn inspect_gives_the_reason_of_a_role() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&[Tensor::random("cls_token", &[1, 1, 8], 1)]));
    let text = sandbox.ok("inspect m.safetensors").stdout;
    assert!(text.contains("why this role") && text.contains("a bare parameter by its name"), "{text}");
    assert_eq!(of(&sandbox.json("inspect m.safetensors"), "cls_token")["why"], "a bare parameter by its name");
}

/// Returns the number of stored scales of a tensor and its output axis.
fn scales_and_axis(directory: &Path, name: &str) -> (usize, String) {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let stored = checkpoint.stored().unwrap();
    let index = stored.find(name).unwrap();
    let rows = stored.tensors[index].rows();
    (checkpoint.affines(index, 0..rows.n_rows).unwrap().len(), format!("{:?}", stored.tensors[index].axis))
}

fn gpt2(sandbox: &Sandbox, config: &str) {
    let tensors = [
        Tensor::random("h.0.attn.c_attn.weight", &[8, 24], 1),
        Tensor::random("h.0.attn.c_attn.bias", &[24], 2),
        Tensor::random("h.0.attn.c_proj.weight", &[8, 8], 3),
        Tensor::random("h.0.attn.c_proj.bias", &[8], 4),
        Tensor::random("wte.weight", &[20, 8], 5),
    ];
    model(sandbox, "gpt2", config, &tensors);
}

#[test]
fn conv1d_weights_get_a_scale_per_index_of_their_last_axis() {
    for config in [r#"{"model_type": "gpt2"}"#, "{}"] {
        let sandbox = Sandbox::new();
        gpt2(&sandbox, config);
        sandbox.ok("compress gpt2 -o out --quantize int8");
        for (name, n) in [("h.0.attn.c_attn.weight", 24), ("h.0.attn.c_proj.weight", 8)] {
            assert_eq!(scales_and_axis(&sandbox.path("out"), name), (n, "Last".into()), "{config}");
        }
        assert_eq!(scales_and_axis(&sandbox.path("out"), "wte.weight"), (20, "First".into()));
        sandbox.ok("verify out --against gpt2");
        let manifest = String::from_utf8(sandbox.files("out")["briquette.json"].clone()).unwrap();
        assert!(manifest.contains("\"version\": 5,"), "hashes cover the output axis");
    }
}

#[test]
fn biases_decide_the_layout_of_layers_named_like_conv1d() {
    let sandbox = Sandbox::new();
    let tensors = [
        Tensor::random("h.0.attn.c_attn.weight", &[24, 8], 1),
        Tensor::random("h.0.attn.c_attn.bias", &[24], 2),
        Tensor::random("h.0.attn.c_proj.weight", &[8, 8], 3),
    ];
    model(&sandbox, "bigcode", r#"{"model_type": "gpt_bigcode"}"#, &tensors);
    sandbox.ok("compress bigcode -o out --quantize int8");
    for (name, n) in [("h.0.attn.c_attn.weight", 24), ("h.0.attn.c_proj.weight", 8)] {
        assert_eq!(scales_and_axis(&sandbox.path("out"), name), (n, "First".into()));
    }
}

fn experts(dtype: DType) -> [Tensor; 3] {
    let random = |name: &str, shape: &[usize], seed| {
        let mut tensor = Tensor::random(name, shape, seed);
        if dtype != DType::F32 {
            tensor.bytes = tensor.bytes.chunks(4).flat_map(|bytes| [bytes[2], bytes[3]]).collect();
            tensor.dtype = dtype;
        }
        tensor
    };
    [
        random("mlp.experts.gate_up_proj", &[3, 40, 32], 1),
        random("mlp.experts.down_proj", &[3, 32, 20], 2),
        random("mlp.gate.weight", &[3, 32], 3),
    ]
}

#[test]
fn each_output_of_each_expert_gets_scales_and_groups_are_along_inputs() {
    for (dtype, config) in [(DType::F32, "{}"), (DType::BF16, r#"{"model_type": "qwen3_moe", "hidden_size": 32}"#)] {
        let sandbox = Sandbox::new();
        let tensors = experts(dtype);
        model(&sandbox, "moe", config, &tensors);
        sandbox.ok("compress moe -o out --quantize int8");
        let path = sandbox.path("out");
        assert_eq!(scales_and_axis(&path, "mlp.experts.gate_up_proj"), (120, "Stacked".into()));
        assert_eq!(scales_and_axis(&path, "mlp.experts.down_proj"), (96, "Stacked".into()));
        let manifest = String::from_utf8(sandbox.files("out")["briquette.json"].clone()).unwrap();
        assert!(manifest.contains("\"version\": 2,") && manifest.contains("\"output_axis\": \"stacked\""));
        assert_eq!(tensors_of(&path)["mlp.gate.weight"], tensors[2], "the router is unchanged");
        for (out, what) in [
            ("groups", "--quantize int4-g16 --exclude mlp.experts.down_proj"),
            ("pattern", "--prune-pattern 2:4"),
            ("sparse", "--prune 0.7"),
            ("dense", "--prune 0.7 --format dense"),
            ("both", "--prune 0.6 --quantize int8"),
            ("cast", "--cast f16"),
        ] {
            sandbox.ok(&format!("compress moe -o {out} {what}"));
            sandbox.ok(&format!("verify {out} --against moe"));
            sandbox.ok(&format!("export {out} --to dense -o {out}-floats"));
            assert_eq!(tensors_of(&sandbox.path(out)), tensors_of(&sandbox.path(&format!("{out}-floats"))), "{out}");
        }
    }
}

#[test]
fn a_large_expert_does_not_reduce_the_precision_of_small_ones() {
    let sandbox = Sandbox::new();
    let [mut up, down, _] = experts(DType::F32);
    let floats = up.floats().into_iter().enumerate().map(|(i, x)| if i < 40 * 32 { 1000.0 * x } else { x });
    up = Tensor::f32(&up.name, &up.shape, floats);
    model(&sandbox, "moe", "{}", &[up.clone(), down]);
    sandbox.ok("compress moe -o out --quantize int8");
    let after = tensors_of(&sandbox.path("out"));
    let error = |(a, b): (f32, f32)| (a - b).abs();
    let pairs = up.floats().into_iter().zip(after[&up.name].floats()).skip(40 * 32);
    assert!(pairs.map(error).fold(0.0, f32::max) < 0.005);
}

#[test]
fn tensors_of_uncertain_role_are_skipped_and_named() {
    let sandbox = Sandbox::new();
    let experts = [
        Tensor::random("mlp.experts.gate_up_proj", &[3, 32, 40], 1),
        Tensor::random("mlp.experts.down_proj", &[3, 20, 32], 2),
        Tensor::random("text_projection", &[6, 8], 3),
        Tensor::random("fc.weight", &[4, 8], 4),
    ];
    model(&sandbox, "oss", r#"{"model_type": "gpt_oss", "hidden_size": 32}"#, &experts);
    let names = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj", "text_projection"];
    let plan = sandbox.json("plan oss --quantize int8");
    let mut unsure: Vec<&str> = plan["unsure"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    unsure.sort_unstable();
    assert_eq!(unsure, names);
    let expected = "3 tensors of unknown role stay unchanged";
    for line in ["plan oss --quantize int8", "compress oss -o out --quantize int8"] {
        let text = sandbox.ok(line).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(expected) && text.contains("[[model.roles]]"), "{text}");
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
    let after = tensors_of(&sandbox.path("out"));
    experts[..3].iter().for_each(|tensor| assert_eq!(&after[&tensor.name], tensor));
    assert!(
        sandbox.json("compress oss -o cast --cast f16")["remarks"].as_array().unwrap().is_empty(),
        "a cast selects all tensors"
    );
}

#[test]
fn a_model_of_unknown_roles_is_refused_with_a_tensor_name() {
    let sandbox = Sandbox::new();
    sandbox.write("m.safetensors", safetensors_of(&[Tensor::random("text_projection", &[6, 8], 1)]));
    let refused = sandbox.run("compress m.safetensors -o out --quantize int8");
    refused.assert_fails(2, &["selects no tensor", "[[model.roles]]", "text_projection"]);
    sandbox.ok("compress m.safetensors -o out --quantize int8 --include text_projection");
}

#[test]
fn a_recipe_can_set_roles_and_output_axes() {
    let sandbox = Sandbox::new();
    let tensors = [Tensor::random("text_projection", &[6, 8], 1), Tensor::random("stack", &[2, 6, 8], 2)];
    sandbox.write("m.safetensors", safetensors_of(&tensors));
    let recipe = |name: &str, axis: &str| {
        format!(
            "[model]\npath = \"m.safetensors\"\n[[model.roles]]\ninclude = [\"{name}\"]\nrole = \"linear\"\noutputs = \"{axis}\"\n\
             [output]\npath = \"out-{axis}\"\n[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n"
        )
    };
    for (name, axis, n) in [("text_projection", "last", 8), ("text_projection", "first", 6), ("stack", "stacked", 12)] {
        sandbox.write("r.toml", recipe(name, axis));
        sandbox.ok("run r.toml");
        assert_eq!(scales_and_axis(&sandbox.path(&format!("out-{axis}")), name).0, n, "{name} {axis}");
        sandbox.ok(&format!("verify out-{axis} --against m.safetensors"));
    }
    for (name, axis) in [("stack", "last"), ("text_projection", "stacked")] {
        sandbox.write("r.toml", recipe(name, axis));
        sandbox.run("run r.toml").assert_fails(2, &[name, "outputs", "model.roles"]);
    }
}

#[test]
fn a_manifest_with_a_wrong_output_axis_is_damaged() {
    let sandbox = Sandbox::new();
    let [up, down, _] = experts(DType::F32);
    model(&sandbox, "moe", "{}", &[up, down]);
    sandbox.ok("compress moe -o out --quantize int8");
    let text = String::from_utf8(sandbox.files("out")["briquette.json"].clone()).unwrap();
    // Without `output_axis`, the parts do not match the shape of the tensor.
    sandbox.write("out/briquette.json", text.replace("\"output_axis\": \"stacked\",", ""));
    std::fs::remove_file(sandbox.path("out/SHA256SUMS")).unwrap();
    sandbox.run("inspect out").assert_fails(4, &["mlp.experts", "damaged"]);
}
