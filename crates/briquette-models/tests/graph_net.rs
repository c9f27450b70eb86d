//! Networks that interpret their graph: names, values, fused steps and dropout.

use briquette_graph::Op;
use briquette_graph::op::Composite;
use briquette_models::graph_net::{GraphNet, RunInputs};
use briquette_models::{Arch, LoadedModel};
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn net(name: &str) -> GraphNet {
    GraphNet::from_checkpoint(&fixture(name), &Device::flex()).unwrap()
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
fn parameters_have_the_names_of_the_checkpoint() {
    let net = net("models/bert-tiny");
    let found = briquette_nn::parameters(&net);
    assert!(found.iter().any(|parameter| parameter.path == "encoder.layer.1.attention.self.query.weight"));
    assert!(net.num_params() > 0);
}

#[test]
fn any_value_can_be_tapped() {
    let net = net("models/bert-tiny");
    let (ids, padding) = (tokens(2, 6), padding(2, 6));
    let states = net.trace(&RunInputs::padded(ids.clone(), padding.clone()), false).hidden;
    let name = "encoder.layer.0.output.LayerNorm";
    let found = net.tap(&RunInputs::padded(ids.clone(), padding.clone()), &[name]).unwrap().remove(0).three();
    assert_eq!(found.into_data(), states[0].clone().into_data());
    let error = net.tap(&RunInputs::padded(ids, padding), &["nothing"]).unwrap_err();
    assert!(error.message.contains("no value \"nothing\""));
}

#[test]
fn blocks_one_after_another_equal_the_whole_network() {
    for name in ["models/bert-tiny", "models/llama-tied"] {
        let net = net(name);
        let (ids, padding) = (tokens(2, 6), padding(2, 6));
        let blocks = &net;
        let inputs = RunInputs::padded(ids.clone(), padding.clone());
        let state = blocks.enter(&inputs);
        let state = (0..blocks.n_blocks()).fold(state, |state, index| blocks.block(index, state, &inputs));
        let last = blocks.leave(state).three().into_data();
        let expected = if name.contains("bert") { net.encode(ids, padding) } else { net.as_decoder().last_state(ids) };
        assert_eq!(last, expected.into_data(), "{name}");
    }
}

#[test]
fn blocks_of_image_networks_need_no_images_after_the_first() {
    for (name, side) in [("swin", 32), ("swin-padded", 28), ("clip", 16), ("clip-vision", 16), ("siglip-vision", 16)] {
        let net = net(&format!("families/{name}"));
        let pixels: Vec<f32> = (0..9 * side * side).map(|at| briquette_core::random::uniform(3, at as u64)).collect();
        let images = Tensor::from_data(TensorData::new(pixels, [3, 3, side, side]), &Device::flex());
        let blocks = &net;
        let state = blocks.enter(&RunInputs::images(images.clone()));
        let inputs = RunInputs::read();
        let state = (0..blocks.n_blocks()).fold(state, |state, index| blocks.block(index, state, &inputs));
        // A sum before a norm is fused only in the whole network, and may round otherwise.
        let apart = (blocks.leave(state).two() - net.forward(&RunInputs::images(images)).two()).abs().max();
        assert!(apart.into_scalar::<f32>() < 1e-5, "{name}");
    }
}

#[test]
fn known_kernels_are_called_for_fused_steps() {
    let lowered = |name| net(name).lowered();
    let bert = lowered("models/bert-tiny");
    let count = |steps: &[String], name: &str| steps.iter().filter(|step| step.starts_with(name)).count();
    assert_eq!(count(&bert, "self-attention (fused)"), 2);
    assert_eq!(count(&bert, "feed-forward (fused)"), 2);
    assert_eq!(count(&bert, "sum and layer norm (fused)"), 5);
    let resnet = lowered("models/resnet18-tiny.pth");
    assert_eq!((count(&resnet, "convolution and batch norm (fused)"), count(&resnet, "relu")), (20, 0));
    let mobilenet = lowered("families/mobilenet_v2");
    let apart = ["batch norm", "relu6", "add"].map(|name| count(&mobilenet, name));
    assert!(apart == [0; 3] && count(&mobilenet, "convolution and batch norm (fused)") > 50, "{mobilenet:?}");
    let vgg = lowered("families/vgg");
    assert!(count(&vgg, "convolution (fused)") == 4, "{vgg:?}");
}

/// Copies a model with another config.json.
fn with_config(name: &str, change: impl Fn(String) -> String) -> tempfile::TempDir {
    let (from, dir) = (fixture(name), tempfile::tempdir().unwrap());
    for entry in std::fs::read_dir(from).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    std::fs::write(&path, change(std::fs::read_to_string(&path).unwrap())).unwrap();
    dir
}

#[test]
fn hidden_states_and_attention_have_dropout_of_their_own() {
    let rates = |hidden: &str, attention: &str| {
        let dir = with_config("models/bert-tiny", |config| {
            let config = config.replace("\"hidden_dropout_prob\": 0.1", &format!("\"hidden_dropout_prob\": {hidden}"));
            config.replace("s_dropout_prob\": 0.1", &format!("s_dropout_prob\": {attention}"))
        });
        let device = Device::flex().autodiff();
        let network = LoadedModel::open(dir.path(), None, &device).unwrap().network;
        let run = || {
            let [ids, _] = [(); 2].map(|()| tokens(2, 6));
            let ids: Tensor<2, Int> = Tensor::from_data(ids.into_data(), &device);
            let no = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; 12], [2, 6]), &device);
            network.encode(ids, no).into_data()
        };
        run() == run()
    };
    assert!(rates("0.0", "0.0"), "without dropout, runs are equal");
    assert!(!rates("0.5", "0.0") && !rates("0.0", "0.5"));
}

#[test]
fn a_decoder_without_a_head_is_refused_as_an_architecture() {
    let (folder, arch) = (fixture("families/llama-base"), "llama".parse::<Arch>().unwrap());
    assert!(GraphNet::from_checkpoint(&folder, &Device::flex()).is_ok());
    let error = LoadedModel::open(&folder, Some(arch), &Device::flex()).unwrap_err();
    assert!(error.exit_code() == 4 && error.message.contains("no head over the vocabulary"), "{error}");
}

#[test]
fn traced_probabilities_are_those_that_the_run_uses() {
    // With rotary positions, local layers, position biases, and none of them.
    for name in ["models/bert-tiny", "families/modernbert", "families/nomic_bert", "families/mpnet", "families/t5"] {
        let net = net(name);
        let (ids, padding) = (tokens(2, 9), padding(2, 9));
        let trace = net.trace(&RunInputs::padded(ids.clone(), padding.clone()), true);
        let graph = net.graph();
        let attentions = graph.nodes.iter().filter(|node| matches!(node.op, Op::Composite(Composite::Attention(_))));
        let names: Vec<&str> = attentions.map(|node| graph.values[node.outputs[0].0].as_str()).collect();
        assert_eq!((trace.attention.len(), trace.values.len()), (names.len(), names.len()), "{name}");
        let found = net.tap(&RunInputs::padded(ids.clone(), padding.clone()), &names).unwrap();
        for ((probabilities, values), mixed) in trace.attention.into_iter().zip(trace.values).zip(found) {
            let ([batch, heads, length, _], [_, _, width]) = (probabilities.dims(), values.dims());
            let sums = probabilities.clone().sum_dim(3);
            assert!((sums - 1.0).abs().max().into_scalar::<f32>() < 1e-5, "{name}");
            let values = values.reshape([batch, length, heads, width / heads]).swap_dims(1, 2);
            let expected = probabilities.matmul(values).swap_dims(1, 2).reshape([batch, length, width]);
            let apart = (expected - mixed.three()).abs().max().into_scalar::<f32>();
            assert!(apart < 1e-5, "{name}: {apart}");
        }
        // Attention has no effect on the hidden states of a trace.
        let plain = net.trace(&RunInputs::padded(ids, padding), false);
        for (with, without) in trace.hidden.into_iter().zip(plain.hidden) {
            assert!((with - without).abs().max().into_scalar::<f32>() < 1e-4, "{name}");
        }
    }
}
