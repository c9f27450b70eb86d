//! Compares tiny models with torch, torchvision and transformers; see fixtures/make_model_goldens.py.

#![allow(clippy::print_stdout)]

use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::graph_net::RunInputs;
use briquette_models::memory::predicted_bytes;
use briquette_models::text::{Tokens, padded};
use briquette_models::{Arch, GraphNet, Input, LoadedModel};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn load(name: &str, arch: Option<Arch>) -> LoadedModel {
    LoadedModel::open(&fixture(name), arch, &Device::default()).unwrap()
}

/// Reads a tensor of a safetensors file: shape and values as f32.
fn expected(file: &str, name: &str) -> (Vec<usize>, Vec<f32>) {
    let checkpoint = Checkpoint::open(&fixture(&format!("models/{file}.expected.safetensors"))).unwrap();
    let index = checkpoint.tensors().iter().position(|info| info.name == name).unwrap();
    let info = &checkpoint.tensors()[index];
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes).unwrap();
    let values = match info.dtype.name() {
        "F32" => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        "I32" => bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as f32).collect(),
        "U8" => bytes.iter().map(|&byte| f32::from(byte)).collect(),
        other => panic!("{other}"),
    };
    (info.shape.0.clone(), values)
}

fn tensor<const D: usize>((shape, values): (Vec<usize>, Vec<f32>)) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &Device::default())
}

fn ids((shape, values): (Vec<usize>, Vec<f32>)) -> Tensor<2, Int> {
    let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::default())
}

/// Checks that the largest difference is at most 1e-4 of the largest output.
fn assert_agrees<const D: usize>(found: Tensor<D>, expected: &[f32]) {
    let found: Vec<f32> = found.into_data().try_into_vec_as().unwrap();
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let apart = found.iter().zip(expected).fold(0.0_f32, |apart, (a, b)| apart.max((a - b).abs()));
    println!("apart {apart:e} of {largest}: {:e}", apart / largest);
    assert!(apart <= 1e-4 * largest, "{apart} apart, the largest output is {largest}");
}

fn check_classifier(model: &str, arch: &str) {
    let stem = model.split('.').next().unwrap();
    let loaded = load(&format!("models/{model}"), None);
    assert_eq!(loaded.arch.name(), arch);
    let logits = loaded.network.classify(tensor(expected(stem, "images")));
    assert_agrees(logits, &expected(stem, "logits").1);
}

#[test]
fn resnet_18_agrees_with_torchvision() {
    check_classifier("resnet18-tiny.pth", "resnet18");
}

#[test]
fn resnet_50_agrees_with_torchvision_on_half_precision_weights() {
    check_classifier("resnet50-tiny.safetensors", "resnet50");
}

#[test]
fn the_digits_network_agrees_with_torch_in_every_container() {
    for path in ["digits", "digits-sharded", "digits.pt"] {
        let loaded = load(path, None);
        assert_eq!(loaded.arch.name(), "digits-cnn");
        let data = Checkpoint::open(&fixture("digits-data.safetensors")).unwrap();
        let index = data.tensors().iter().position(|info| info.name == "test_x").unwrap();
        let mut pixels = vec![0_u8; 16 * 64];
        data.read(index, 0, &mut pixels).unwrap();
        let images = pixels.iter().map(|&pixel| f32::from(pixel) / 16.0).collect();
        let logits = loaded.network.classify(tensor((vec![16, 1, 8, 8], images)));
        assert_agrees(logits, &expected("digits", "logits").1);
    }
}

#[test]
fn bert_agrees_with_transformers_through_its_tokenizer_and_pooling() {
    let loaded = load("models/bert-tiny", None);
    let (shape, mask) = expected("bert-tiny", "mask");
    let sentences = [
        "the cat sat on the mat",
        "A dog ran.",
        "the dogs and the cats sat, and sat, and ran on and on and on",
        "zebra",
        "",
    ];
    let tokens: Vec<Tokens> = sentences.iter().map(|text| loaded.tokenizer().unwrap().encode(text).unwrap()).collect();
    let (found, padding) = padded(&tokens, &Device::default());
    assert_eq!(found.clone().into_data(), ids(expected("bert-tiny", "ids")).into_data());
    let states = loaded.network.encode(found, padding.clone());
    let there: Tensor<2> = tensor((shape, mask));
    assert_agrees(states.clone() * there.unsqueeze_dim::<3>(2), &expected("bert-tiny", "states").1);
    let Input::Text { pooling, .. } = loaded.input else { panic!() };
    assert_agrees(pooling.apply(states, padding), &expected("bert-tiny", "embeddings").1);
}

/// Copies the tiny BERT with more bytes at the end and a changed header.
fn bert_with(more: &[u8], change: impl Fn(String, usize) -> String) -> tempfile::TempDir {
    let (from, dir) = (fixture("models/bert-tiny"), tempfile::tempdir().unwrap());
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header = change(String::from_utf8(header.to_vec()).unwrap(), data.len());
    let written = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data, more].concat();
    std::fs::write(dir.path().join("model.safetensors"), written).unwrap();
    dir
}

#[test]
fn norms_with_tensorflow_names_load() {
    let dir = bert_with(&[], |header, _| {
        header.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    });
    let [old, new] = [dir.path(), &fixture("models/bert-tiny")].map(|path| {
        let network = LoadedModel::open(path, None, &Device::default()).unwrap().network;
        hidden(&network, &Device::default()).into_data()
    });
    assert_eq!(old, new);
}

#[test]
fn predicted_memory_excludes_ignored_tensors() {
    let device = Device::default();
    let predicted = |path: &Path| predicted_bytes(&Checkpoint::open(path).unwrap(), None, None, &device);
    let head = |name: &str| {
        let dir = bert_with(&[0; 28], |header, end| {
            let span = format!("[{end},{}]", end + 28);
            header.replacen('{', &format!("{{{name:?}:{{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":{span}}},"), 1)
        });
        predicted(dir.path())
    };
    let plain = predicted(&fixture("models/bert-tiny"));
    assert_eq!(head("cls.predictions.decoder.weight"), plain);
    assert!(head("another.weight") > plain, "if the model cannot load, every tensor counts");
}

fn check_llama(name: &str, arch: &str) {
    let loaded = load(&format!("models/{name}"), None);
    assert_eq!(loaded.arch.name(), arch);
    let logits = loaded.network.decode(ids(expected(name, "ids")));
    assert_agrees(logits, &expected(name, "logits").1);
}

#[test]
fn a_tied_llama_with_scaled_rope_agrees_with_transformers() {
    check_llama("llama-tied", "llama");
}

#[test]
fn an_untied_llama_agrees_with_transformers() {
    check_llama("llama-untied", "llama");
}

#[test]
fn qwen_with_biases_agrees_with_transformers() {
    check_llama("llama-qwen", "qwen2");
}

#[test]
fn the_last_hidden_state_gives_the_forward_output() {
    let network = load("models/bert-tiny", None).network;
    let tokens = ids(expected("bert-tiny", "ids"));
    let padding = tokens.clone().equal_elem(0);
    let states = network.trace(&RunInputs::padded(tokens.clone(), padding.clone()), false).hidden;
    assert_eq!(states.len(), 2);
    assert_eq!(states[1].clone().into_data(), network.encode(tokens, padding).into_data());
}

#[test]
fn a_wrong_arch_suggests_the_right_one() {
    let open = |name: &str, arch: &str| {
        let error = LoadedModel::open(&fixture(name), Some(arch.parse().unwrap()), &Device::default()).unwrap_err();
        assert_eq!(error.exit_code(), 4, "{error}");
        error.to_string()
    };
    let error = open("models/llama-tied", "resnet18");
    assert!(error.contains("not a type of resnet18; set arch = \"llama\""), "{error}");
    // Without a model_type, the first missing tensor is named.
    let error = open("models/resnet18-tiny.pth", "resnet50");
    assert!(error.contains("not those of resnet50") && error.contains("set arch = \"resnet18\""), "{error}");
    let error = open("models/resnet18-tiny.pth", "digits-cnn");
    assert!(error.contains("conv2.weight") && error.contains("set arch = \"resnet18\""), "{error}");
}

/// Returns BERT's last hidden state of the golden tokens, from a network on `device`.
fn hidden(network: &GraphNet, device: &Device) -> Tensor<3> {
    let (shape, values) = expected("bert-tiny", "ids");
    let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
    let tokens: Tensor<2, Int> = Tensor::from_data(TensorData::new(values, shape), device);
    let padding = tokens.clone().equal_elem(0);
    network.encode(tokens, padding)
}

#[test]
fn bert_applies_dropout_only_in_training() {
    let device = Device::flex().autodiff();
    let values = |tensor: Tensor<3>| tensor.into_data().try_into_vec_as::<f32>().unwrap();
    let network = LoadedModel::open(&fixture("models/bert-tiny"), None, &device).unwrap().network;
    assert_ne!(values(hidden(&network, &device)), values(hidden(&network, &device)));
    let plain = LoadedModel::open(&fixture("models/bert-tiny"), None, &Device::flex()).unwrap().network;
    let run = values(hidden(&network.valid(), &Device::flex()));
    assert_eq!(run, values(hidden(&plain, &Device::flex())), "bit for bit");
    let frozen = values(hidden(&network.freeze(), &device));
    assert!(frozen.iter().zip(&run).all(|(a, b)| (a - b).abs() < 1e-4), "equal except for the order of sums");
}
