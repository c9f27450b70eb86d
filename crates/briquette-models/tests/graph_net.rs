//! Networks that interpret their graph compute the same as the networks that were written by hand, bit for bit.

#![allow(clippy::unwrap_used)]

use briquette_models::graph_net::{GraphNet, RunInputs};
use briquette_models::{LoadedModel, Network};
use burn::module::Module;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn both(name: &str) -> (Network, GraphNet) {
    let (path, device) = (fixture(name), Device::flex());
    let network = LoadedModel::open(&path, None, &device).unwrap().network;
    (network, GraphNet::from_checkpoint(&path, &device).unwrap())
}

fn tokens(batch: usize, length: usize) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..batch * length).map(|at| (at * 7 % 17 + 1) as i64).collect();
    Tensor::from_data(TensorData::new(ids, [batch, length]), &Device::flex())
}

/// Hides the last tokens of the second sequence.
fn padding(batch: usize, length: usize) -> Tensor<2, Bool> {
    let hidden: Vec<bool> = (0..batch * length).map(|at| at / length == 1 && at % length >= length - 2).collect();
    Tensor::from_data(TensorData::new(hidden, [batch, length]), &Device::flex())
}

#[test]
fn encoders_are_equal_bit_for_bit() {
    for name in ["models/bert-tiny"] {
        let (network, net) = both(name);
        for (batch, length) in [(2, 6), (3, 9)] {
            let (ids, padding) = (tokens(batch, length), padding(batch, length));
            let expected = network.encode(ids.clone(), padding.clone());
            let found = net.forward(&RunInputs::padded(ids, padding)).three();
            assert_eq!(found.into_data(), expected.into_data(), "{name}");
        }
    }
}

#[test]
fn decoders_are_equal_bit_for_bit() {
    for name in ["models/llama-tied", "models/llama-untied", "models/llama-qwen"] {
        let (network, net) = both(name);
        for (batch, length) in [(1, 1), (2, 7), (3, 5)] {
            let ids = tokens(batch, length);
            let expected = network.decode(ids.clone());
            let found = net.forward(&RunInputs::tokens(ids)).three();
            assert_eq!(found.into_data(), expected.into_data(), "{name}");
        }
    }
}

#[test]
fn classifiers_are_equal_bit_for_bit() {
    let names = ["digits", "models/resnet18-tiny.pth", "models/resnet50-tiny.safetensors"];
    for (name, size) in names.into_iter().zip([[1, 8], [3, 64], [3, 64]]) {
        let (network, net) = both(name);
        let images = Tensor::random([3, size[0], size[1], size[1]], Distribution::Normal(0.0, 1.0), &Device::flex());
        let expected = network.classify(images.clone());
        assert_eq!(net.forward(&RunInputs::images(images)).two().into_data(), expected.into_data(), "{name}");
    }
}

#[test]
fn parameters_have_the_names_of_the_checkpoint() {
    let (_, net) = both("models/bert-tiny");
    let found = briquette_nn::parameters(&net);
    assert!(found.iter().any(|parameter| parameter.path == "encoder.layer.1.attention.self.query.weight"));
    assert!(net.num_params() > 0);
}

#[test]
fn any_value_can_be_tapped() {
    let (network, net) = both("models/bert-tiny");
    let Network::Bert(bert) = &network else { panic!() };
    let (ids, padding) = (tokens(2, 6), padding(2, 6));
    let states = bert.hidden_states(ids.clone(), padding.clone());
    let name = "encoder.layer.0.output.LayerNorm";
    let found = net.tap(&RunInputs::padded(ids.clone(), padding.clone()), &[name]).unwrap().remove(0).three();
    assert_eq!(found.into_data(), states[1].clone().into_data());
    let error = net.tap(&RunInputs::padded(ids, padding), &["nothing"]).unwrap_err();
    assert!(error.message.contains("no value \"nothing\""));
}

#[test]
fn known_kernels_are_called_for_fused_steps() {
    let lowered = |name| GraphNet::from_checkpoint(&fixture(name), &Device::flex()).unwrap().lowered();
    let bert = lowered("models/bert-tiny");
    let count = |steps: &[String], name: &str| steps.iter().filter(|step| step.starts_with(name)).count();
    assert_eq!(count(&bert, "self-attention (fused)"), 2);
    assert_eq!(count(&bert, "feed-forward (fused)"), 2);
    assert_eq!(count(&bert, "sum and layer norm (fused)"), 5);
    let resnet = lowered("models/resnet18-tiny.pth");
    assert_eq!((count(&resnet, "convolution and batch norm (fused)"), count(&resnet, "relu")), (20, 0));
}
