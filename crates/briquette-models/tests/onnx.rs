//! ONNX models that are run: the same outputs as onnxruntime. `fixtures/make_onnx.py` makes the models and the outputs.

use briquette_formats::onnx::carried_model;
use briquette_formats::onnx_write::encode_network;
use briquette_formats::{Checkpoint, InputFile, TensorSource};
use briquette_graph::onnx::InputDims;
use briquette_models::graph_net::{AnyTensor, GraphNet, RunInputs};
use briquette_models::memory::predicted_bytes;
use briquette_models::{Arch, CacheType, LoadedModel};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx").join(name)
}

fn net(name: &str) -> GraphNet {
    GraphNet::from_checkpoint(&fixture(&format!("run/{name}.onnx")), &Device::flex()).unwrap()
}

/// Returns the reference tensors of a model below a path, such as `in`, by name.
fn reference(model: &str, path: &str) -> BTreeMap<String, AnyTensor> {
    let checkpoint = Checkpoint::open(&fixture("run/reference.safetensors")).unwrap();
    let prefix = format!("{model}/{path}/");
    let named = checkpoint.tensors().iter().enumerate().filter_map(|(at, info)| {
        let name = info.name.strip_prefix(&prefix)?;
        let (mut bytes, shape) = (vec![0; info.n_bytes()], info.shape.0.clone());
        checkpoint.read(at, 0, &mut bytes).unwrap();
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let flat = Tensor::<1>::from_data(TensorData::new(values, [shape.iter().product::<usize>()]), &Device::flex());
        Some((name.to_string(), of_shape(flat, &shape)))
    });
    named.collect()
}

fn of_shape(flat: Tensor<1>, shape: &[usize]) -> AnyTensor {
    match *shape {
        [] => flat.into(),
        [a] => flat.reshape([a]).into(),
        [a, b] => flat.reshape([a, b]).into(),
        [a, b, c] => flat.reshape([a, b, c]).into(),
        [a, b, c, d] => flat.reshape([a, b, c, d]).into(),
        _ => panic!("{shape:?}"),
    }
}

/// The largest difference over the largest element.
fn apart(found: &AnyTensor, expected: &AnyTensor) -> f32 {
    assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (found.to_f32("found").unwrap(), expected.to_f32("expected").unwrap());
    let largest = expected.iter().fold(0_f32, |most, value| most.max(value.abs()));
    let pairs = found.iter().zip(&expected);
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0_f32, |most, other| if other > most || other.is_nan() { other } else { most })
        / largest
}

#[test]
fn outputs_equal_those_of_onnxruntime() {
    let names = [
        "images",
        "functions",
        "encoder",
        "decoder",
        "lookups",
        "recurrent",
        "branches",
        "spaces",
        "products",
        "loops",
        "counted",
        "calls",
        "tops",
        "quantized",
        "shared_codes",
        "code_groups",
        "replaced",
        "older",
    ];
    for name in names {
        let expected = reference(name, "out");
        let found = net(name).run_named(&reference(name, "in")).unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (output, found) in found {
            let apart = apart(&found, &expected[&output]);
            assert!(apart <= 1e-4, "{name} {output}: {apart}");
        }
    }
}

fn tokens(batch: usize, length: usize) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..batch * length).map(|at| (at * 7 % 11) as i64).collect();
    Tensor::from_data(TensorData::new(ids, [batch, length]), &Device::flex())
}

#[test]
fn texts_of_any_length_run_with_padding_that_changes_nothing() {
    let net = net("encoder");
    let ids = tokens(2, 5);
    let whole = net.encode(ids.clone(), Tensor::<2, Bool>::from([[false; 5]; 2]).to_device(&Device::flex()));
    let longer = Tensor::cat(vec![ids, tokens(2, 3)], 1);
    let padding: [bool; 8] = std::array::from_fn(|at| at >= 5);
    let padded = net.encode(longer, Tensor::<2, Bool>::from([padding; 2]).to_device(&Device::flex()));
    assert_eq!((whole.dims(), padded.dims()), ([2, 5, 8], [2, 8, 8]));
    let difference = (whole - padded.narrow(1, 0, 5)).abs().max().into_scalar::<f32>();
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn a_decoder_sees_only_earlier_tokens() {
    let net = net("decoder");
    let ids = tokens(2, 6);
    let [whole, cut] = [ids.clone(), ids.narrow(1, 0, 4)].map(|ids| net.forward(&RunInputs::tokens(ids)).three());
    assert_eq!(whole.dims(), [2, 6, 13]);
    let difference = (whole.narrow(1, 0, 4) - cut).abs().max().into_scalar::<f32>();
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn a_decoder_continues_sequences_of_different_lengths() {
    let net = net("decoder");
    let decoder = net.as_decoder();
    let (long, short) = (tokens(1, 6), tokens(1, 4));
    let mut caches = [(); 2].map(|()| decoder.key_values(CacheType::F32));
    decoder.next_state(long.clone().narrow(1, 0, 4), &mut caches[..1]);
    decoder.next_state(short.clone().narrow(1, 0, 2), &mut caches[1..]);
    let new = Tensor::cat(vec![long.clone().narrow(1, 4, 2), short.clone().narrow(1, 2, 2)], 0);
    let found = decoder.scores(decoder.next_state(new, &mut caches));
    let last = |tokens: Tensor<2, Int>, from: usize| decoder.last_state(tokens).narrow(1, from, 2);
    let expected = Tensor::cat(vec![last(long, 4), last(short, 2)], 0);
    let difference = (found - expected).abs().max().into_scalar::<f32>();
    assert!(difference < 1e-5, "{difference}");
    assert_eq!(caches.map(|cache| cache.n_tokens()), [6, 4]);
}

#[test]
fn tied_words_are_a_head_and_shared_biases_stay_shared() {
    let net = net("encoder");
    let paths: Vec<String> = briquette_nn::parameters(&net).into_iter().map(|parameter| parameter.path).collect();
    let n = |name: &str| paths.iter().filter(|path| path.starts_with(name)).count();
    assert_eq!((n("words"), n("const1"), n("layer.0.norm1")), (1, 1, 2), "{paths:?}");
}

#[test]
fn tasks_follow_from_inputs_and_outputs() {
    let arch = |name: &str| Arch::detect(&Checkpoint::open(&fixture(name)).unwrap());
    let found = ["images", "encoder", "decoder"].map(|name| arch(&format!("run/{name}.onnx")).unwrap().to_string());
    assert_eq!(found, ["onnx-classifier", "onnx-encoder", "onnx-decoder"]);
    // A masked language model scores tokens too; config.json tells.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("model.onnx");
    std::fs::copy(fixture("run/decoder.onnx"), &copy).unwrap();
    for (model_type, expected) in [("roberta", "onnx-encoder"), ("gpt2", "onnx-decoder"), ("own", "onnx-decoder")] {
        let config = format!("{{\"model_type\": {model_type:?}}}");
        std::fs::write(directory.path().join("config.json"), config).unwrap();
        let found = Arch::detect(&Checkpoint::open(&copy).unwrap()).unwrap().to_string();
        assert_eq!(found, expected, "{model_type}");
    }
    // The positions of config.json, without those that RoBERTa keeps for padding.
    for (config, n_positions) in [
        (r#"{"model_type": "gpt2", "n_positions": 20}"#, 20),
        (r#"{"model_type": "bert", "max_position_embeddings": 20}"#, 20),
        (r#"{"model_type": "roberta", "max_position_embeddings": 20}"#, 18),
        (r#"{"model_type": "roberta", "max_position_embeddings": 20, "pad_token_id": 0}"#, 19),
        ("{}", usize::MAX),
    ] {
        std::fs::write(directory.path().join("config.json"), config).unwrap();
        let net = GraphNet::from_checkpoint(&copy, &Device::flex()).unwrap();
        assert_eq!(net.as_decoder().max_positions(), n_positions, "{config}");
    }
    let text = arch("run/functions.onnx").unwrap_err().to_string();
    assert!(text.contains("input \"x\"") && text.contains("expected images or token ids"), "{text}");
    let model = LoadedModel::open(&fixture("run/images.onnx"), None, &Device::flex()).unwrap();
    assert_eq!(model.classify(Tensor::ones([3, 3, 12, 14], &Device::flex())).dims(), [3, 5]);
}

#[test]
fn a_number_chooses_the_branch_of_each_run() {
    let (net, mut inputs) = (net("branches"), reference("branches", "in"));
    let mut run = |rate: f32| {
        inputs.insert("rate".into(), Tensor::<1>::from_data([rate], &Device::flex()).into());
        net.run_named(&inputs).unwrap().remove(0).1
    };
    let [low, high, again] = [8000.0, 16000.0, 8000.0].map(&mut run);
    assert!(apart(&low, &again) == 0.0 && apart(&low, &high) > 0.1);
}

#[test]
fn calls_with_weights_become_nodes_that_compute_the_same() {
    let file = InputFile::open(&fixture("run/calls.onnx")).unwrap();
    let found = carried_model(&file, &BTreeMap::new()).unwrap();
    // The other function has no weights, so its calls stay.
    let n = |op: &str| found.nodes.iter().filter(|node| node.op == op).count();
    assert_eq!(["Dense", "MatMul", "Scaled"].map(n), [0, 2, 4]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("inlined.onnx");
    std::fs::write(&path, encode_network(&found).unwrap()).unwrap();
    let net = GraphNet::from_checkpoint(&path, &Device::flex()).unwrap();
    let expected = reference("calls", "out");
    for (output, found) in net.run_named(&reference("calls", "in")).unwrap() {
        assert!(apart(&found, &expected[&output]) <= 1e-6, "{output}");
    }
}

#[test]
fn values_decide_how_often_a_loop_runs() {
    let net = net("counted");
    let mut n_rows = |x: [f32; 2]| {
        let given = [("x".to_string(), Tensor::<1>::from_data(x, &Device::flex()).into())].into();
        net.run_named(&given).unwrap().remove(2).1.dims()[0]
    };
    assert_eq!([[2.25, 1.5], [0.5, 0.1], [2.25, 1.5]].map(&mut n_rows), [3, 5, 3], "as in onnxruntime");
}

#[test]
fn quantized_models_compute_the_same_on_codes_and_on_floats() {
    let inputs = reference("quantized", "in");
    let on_codes = net("quantized").run_named(&inputs).unwrap();
    let device = Device::flex().autodiff();
    let floats = GraphNet::from_checkpoint(&fixture("run/quantized.onnx"), &device).unwrap();
    let given = inputs.into_iter().map(|(name, x)| (name, Tensor::from_inner(x.four()).into())).collect();
    for ((name, codes), (_, floats)) in on_codes.iter().zip(floats.run_named(&given).unwrap()) {
        assert!(apart(codes, &floats) <= 1e-5, "{name}");
    }
    let checkpoint = Checkpoint::open(&fixture("run/quantized.onnx")).unwrap();
    let [codes, floats] = [Device::flex(), device].map(|device| predicted_bytes(&checkpoint, None, None, &device));
    assert!(codes < floats, "{codes} and {floats} bytes");
    let held = briquette_nn::parameters(&net("quantized"));
    let kinds: Vec<(String, Option<String>)> = held.into_iter().map(|one| (one.path, one.reparameterized)).collect();
    let has_codes = |(path, kind): &(String, Option<String>)| kind.is_some() != path.ends_with("bias");
    assert!(kinds.len() == 5 && kinds.iter().all(has_codes), "{kinds:?}");
}

#[test]
fn loops_that_are_too_long_or_collect_nothing_are_refused_in_one_line() {
    let net = net("counted");
    for x in [[2000.0, 1.0], [3.9, 1.0]] {
        let given = [("x".to_string(), Tensor::<1>::from_data(x, &Device::flex()).into())].into();
        let error = net.run_named(&given).unwrap_err();
        let text = error.to_string();
        assert!(error.exit_code() == 2 && text.contains("Loop") && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_graph_may_be_built_for_given_shapes() {
    let dims = |n: usize| InputDims { shapes: [("x".to_string(), vec![n, 4])].into(), ..InputDims::default() };
    let path = fixture("run/branches.onnx");
    let net = GraphNet::from_onnx(&path, &dims(7), &Device::flex()).unwrap();
    let found = net.run_named(&reference("branches", "in")).unwrap().remove(0).1;
    assert_eq!(found.dims(), [2, 4]);
    let text =
        GraphNet::from_onnx(&fixture("external/weights.bin"), &dims(7), &Device::flex()).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn operators_that_cannot_run_are_named_in_one_line() {
    let error = GraphNet::from_checkpoint(&fixture("types.onnx"), &Device::flex()).unwrap_err();
    let text = error.to_string();
    assert!(error.exit_code() == 2 && text.contains("Mystery") && text.lines().count() == 1, "{text}");
}
