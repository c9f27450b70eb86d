//! Tests the random initialization of students.
#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)]

use briquette_formats::{Checkpoint, WeightLayout};
use briquette_models::{LoadedModel, Network, Outline, ResNetConfig, Smaller, smaller};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values of every parameter, by path.
#[derive(Default)]
struct Values {
    path: Vec<String>,
    found: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().try_into_vec_as::<f32>().unwrap();
        self.found.insert(self.path.join("."), values);
    }
}

fn values<M: Module>(module: &M) -> BTreeMap<String, Vec<f32>> {
    let mut values = Values::default();
    module.visit(&mut values);
    values.found
}

fn std(values: &[f32]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / n;
    (values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n).sqrt()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// Locks the device's seed, which all tests share.
fn drawing() -> MutexGuard<'static, ()> {
    static DRAWING: Mutex<()> = Mutex::new(());
    DRAWING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a student of these sizes with this seed.
fn student(model: &Path, sizes: &Value, seed: u64) -> Network {
    let _drawing = drawing();
    let device = Device::flex();
    let checkpoint = Checkpoint::open(model).unwrap();
    let model = LoadedModel::load(&checkpoint, None, &device).unwrap();
    device.seed(seed);
    let how = Smaller::Sizes(sizes.as_object().unwrap().clone());
    smaller(&model, &checkpoint, &how, &device).unwrap().0.network
}

/// Checks that weights have this standard deviation, biases are zero and norms one.
fn check(found: &BTreeMap<String, Vec<f32>>, expected: f64) {
    let (mut n_weights, mut n_biases) = (0, 0);
    for (path, values) in found {
        if path.ends_with("gamma") {
            assert!(values.iter().all(|&value| value == 1.0), "{path}");
        } else if path.ends_with("beta") || path.ends_with("bias") {
            assert!(values.iter().all(|&value| value == 0.0), "{path}");
            n_biases += 1;
        } else {
            assert!((std(values) / expected - 1.0).abs() < 0.1, "{path}: {} of {expected}", std(values));
            n_weights += 1;
        }
    }
    assert!(n_weights > 6 && n_biases < 2 * n_weights, "{n_weights} and {n_biases}");
}

#[test]
fn llama_is_initialized_as_in_transformers() {
    let sizes = json!({ "hidden_size": 96, "intermediate_size": 160 });
    for model in ["llama-tied", "llama-untied", "llama-qwen"] {
        check(&values(&student(&fixture(model), &sizes, 1)), 0.02);
    }
}

#[test]
fn initialization_uses_the_configured_range_and_zero_padding() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("llama-tied").join(name), directory.path().join(name)).unwrap();
    }
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    (config["initializer_range"], config["pad_token_id"]) = (json!(0.1), json!(3));
    std::fs::write(&path, config.to_string()).unwrap();
    let found = values(&student(directory.path(), &json!({ "hidden_size": 96 }), 1));
    let table = &found["Llama.model.embed_tokens.weight"];
    assert!(table[3 * 96..4 * 96].iter().all(|&value| value == 0.0));
    assert!(table[2 * 96..3 * 96].iter().all(|&value| value != 0.0));
    check(&found, 0.1);
}

#[test]
fn bert_is_initialized_as_in_transformers() {
    let sizes = json!({ "hidden_size": 128, "intermediate_size": 160 });
    let found = values(&student(&fixture("bert-tiny"), &sizes, 1));
    let mut words = found.clone();
    let table = words.remove("Bert.embeddings.word_embeddings.weight").unwrap();
    assert!(table[..128].iter().all(|&value| value == 0.0), "the row of padding");
    assert!((std(&table[128..]) / 0.02 - 1.0).abs() < 0.1, "{}", std(&table[128..]));
    // Two rows are too few to measure a deviation.
    words.remove("Bert.embeddings.token_type_embeddings.weight");
    check(&words, 0.02);
}

#[test]
fn initialization_depends_only_on_the_seed() {
    let sizes = json!({ "hidden_size": 64 });
    let of = |seed| values(&student(&fixture("bert-tiny"), &sizes, seed));
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6));
}

#[test]
fn resnet_is_initialized_as_in_torchvision() {
    let _drawing = drawing();
    let device = Device::flex();
    device.seed(1);
    let found = values(&ResNetConfig::of(18, 10).init(&device));
    let he = |n_out: usize, kernel: usize| (2.0 / (n_out * kernel * kernel) as f64).sqrt();
    let cases = [
        ("conv1.weight", he(64, 7)),
        ("layer1.0.conv1.weight", he(64, 3)),
        ("layer2.0.conv2.weight", he(128, 3)),
        ("layer2.0.downsample.0.weight", he(128, 1)),
    ];
    for (path, expected) in cases {
        assert!((std(&found[path]) / expected - 1.0).abs() < 0.05, "{path}: {} of {expected}", std(&found[path]));
    }
    assert!(found["bn1.gamma"].iter().all(|&value| value == 1.0));
    let most = found["fc.weight"].iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert!(most <= 1.0 / 512.0_f32.sqrt() && most > 0.9 / 512.0_f32.sqrt(), "{most}");
}

#[test]
fn an_outline_has_the_tensors_of_the_student_and_refuses_invalid_sizes() {
    let checkpoint = Checkpoint::open(&fixture("llama-untied")).unwrap();
    let outline = || Outline::of(&checkpoint, None).unwrap();
    let sizes = |sizes: Value| Smaller::Sizes(sizes.as_object().unwrap().clone());
    let shapes = |outline: Outline| -> BTreeMap<String, Vec<usize>> {
        outline
            .tensors(WeightLayout::Torch)
            .unwrap()
            .into_iter()
            .map(|info| (info.name.to_string(), info.shape.0.clone()))
            .collect()
    };
    let found = shapes(outline().shrunk(&sizes(json!({ "intermediate_size": 24, "num_hidden_layers": 1 }))).unwrap());
    assert_eq!(found["model.layers.0.mlp.down_proj.weight"], [32, 24], "[out, in]");
    assert!(!found.keys().any(|name| name.contains("layers.1.")));
    let one = shapes(outline().shrunk(&Smaller::Layers(vec![1])).unwrap());
    assert_eq!(one.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    assert_eq!(one["model.layers.0.mlp.down_proj.weight"], [32, 48]);
    for (bad, expected) in [(json!({ "hiden_size": 3 }), "unknown size"), (json!({ "vocab_size": 7 }), "the same")] {
        let error = outline().shrunk(&sizes(bad)).unwrap_err();
        assert!(error.to_string().contains(expected) && error.exit_code() == 2, "{error}");
    }
}
