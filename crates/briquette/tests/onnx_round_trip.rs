//! Every family as an ONNX model: exported, read again, and run as the family itself.

use briquette::RunOptions;
use briquette::core::rows::to_f32;
use briquette::formats::{Checkpoint, TensorSource};
use briquette::graph::{Extents, Graph, InputSource, graph_of};
use briquette::models::graph_net::{AnyTensor, GraphNet, RunInputs};
use briquette::nn::load_into;
use briquette::pipeline::onnx::{OnnxRequest, export};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

/// The largest difference, as a share of the largest output.
const TOLERANCE: f32 = 1e-4;

/// The words of errors for families without an ONNX model that runs from one input.
const REFUSED: [&str; 2] = ["\"NonZero\" cannot be run", "takes images and texts together"];

fn folders() -> Vec<PathBuf> {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let mut found: Vec<PathBuf> = std::fs::read_dir(families).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Token ids with padding, or images, as the network takes them.
fn inputs(net: &GraphNet) -> RunInputs {
    let device = Device::flex();
    let of = |source: InputSource| net.graph().inputs.iter().find(move |input| input.source == source);
    if of(InputSource::TokenIds).is_some() {
        let ids: Vec<i64> = (0..14).map(|at| 3 + at * 5 % 13).collect();
        let hidden: Vec<bool> = (0..14).map(|at| at >= 12).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 7]), &device);
        return RunInputs::padded(ids, Tensor::<2, Bool>::from_data(TensorData::new(hidden, [2, 7]), &device));
    }
    let shape = &of(InputSource::Images).unwrap().shape;
    let side = if shape[2] == 224 { 64 } else { shape[2] };
    let n = 3 * shape[1] * side * side;
    let pixels = Tensor::<1, Int>::arange(0..n as i64, &device).float().sin();
    RunInputs::images(pixels.reshape([3, shape[1], side, side]))
}

/// Removes the hidden states of padding.
fn unpadded(values: AnyTensor) -> Vec<f32> {
    match values {
        AnyTensor::Three(states) => {
            let first = states.clone().narrow(0, 0, 1).narrow(1, 0, 7.min(states.dims()[1]));
            let second = states.clone().narrow(0, 1, 1).narrow(1, 0, 5.min(states.dims()[1]));
            [first, second].map(|part| AnyTensor::from(part).to_f32("states").unwrap()).concat()
        }
        other => other.to_f32("an output").unwrap(),
    }
}

fn apart(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0_f32, |most, value| most.max(value.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    worst.fold(0_f32, |most, one| if one.is_nan() { f32::INFINITY } else { most.max(one) }) / largest
}

/// Returns the difference between a family and its ONNX model, or why there is none.
fn difference(folder: &Path, out: &Path) -> Result<f32, String> {
    let one_line = |error: briquette::Error| error.to_string();
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    export(&OnnxRequest::new(folder, out), &options).map_err(one_line)?;
    let model = GraphNet::from_checkpoint(&out.join("model.onnx"), &Device::flex()).map_err(one_line)?;
    let has = |source: InputSource| model.graph().inputs.iter().any(|input| input.source == source);
    if has(InputSource::Images) && has(InputSource::TokenIds) {
        return Err("the model takes images and texts together".into());
    }
    if has(InputSource::Caller) {
        return Ok(difference_to_golden(folder, &model));
    }
    let inputs = inputs(&model);
    let found = unpadded(model.forward(&inputs));
    // The first output of the model is the family's logits, or else its hidden states.
    let outputs = family_outputs(folder, &inputs);
    let of_same_size = outputs.iter().filter(|output| output.len() == found.len());
    of_same_size.map(|output| apart(&found, output)).reduce(f32::min).ok_or_else(|| "another size".into())
}

/// Returns the difference between an encoder-decoder and its reference implementation.
fn difference_to_golden(folder: &Path, model: &GraphNet) -> f32 {
    let golden = Checkpoint::open(&folder.join("golden.safetensors")).unwrap();
    let read = |name: &str| {
        let index = golden.tensors().iter().position(|info| info.name.as_str() == name)?;
        let info = &golden.tensors()[index];
        let mut bytes = vec![0; info.n_bytes()];
        golden.read(index, 0, &mut bytes).unwrap();
        let mut values = vec![0.0; info.n_elements()];
        match info.dtype.is_weight() {
            true => to_f32(&bytes, info.dtype, &mut values),
            false => values = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as f32).collect(),
        }
        Some((values, info.shape.0.clone()))
    };
    let names = [
        ("input_ids", "ids"),
        ("attention_mask", "mask"),
        ("decoder_input_ids", "target"),
        ("input_features", "features"),
    ];
    let tensor = |(values, shape): (Vec<f32>, Vec<usize>)| {
        let flat = Tensor::<1>::from_data(TensorData::new(values, [shape.iter().product::<usize>()]), &Device::flex());
        match *shape.as_slice() {
            [a, b] => AnyTensor::from(flat.reshape([a, b])),
            [a, b, c] => AnyTensor::from(flat.reshape([a, b, c])),
            _ => panic!("{shape:?}"),
        }
    };
    let given = names.into_iter().filter_map(|(own, key)| Some((own.to_string(), tensor(read(key)?))));
    let (name, found) = model.run_named(&given.collect()).unwrap().remove(0);
    let key = if name == "logits" { "logits" } else { "hidden" };
    apart(&found.to_f32("logits").unwrap(), &read(key).unwrap().0)
}

/// Computes every output of a family, each by a network of its own.
fn family_outputs(folder: &Path, inputs: &RunInputs) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let extents = Extents { batch: 2, tokens: 5, image: [224, 224] };
    let graph = graph_of(&checkpoint, extents).unwrap().unwrap();
    let has = |name: &&String| checkpoint.tensors().iter().any(|info| info.name == name.as_str());
    let one = |output| {
        let whole = Graph { outputs: vec![output], ..graph.clone() };
        let (net, names) = GraphNet::of_graph(whole, &Device::flex()).unwrap();
        let others = graph.unused.iter().chain(graph.weights.iter().flat_map(|weight| &weight.aliases).filter(has));
        let names = others.fold(names, |names, name| names.ignore(name).unwrap());
        unpadded(load_into(net, &checkpoint, &names).unwrap().forward(inputs))
    };
    graph.outputs.iter().copied().map(one).collect()
}

#[test]
fn a_layer_of_low_rank_runs_as_two_products() {
    let dir = tempfile::tempdir().unwrap();
    let (small, out) = (dir.path().join("small"), dir.path().join("onnx"));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families/bert");
    let stage = "[[stage]]\nkind = \"factorize\"\nenergy = 0.3\n";
    let text = format!("[model]\npath = {model:?}\n[output]\npath = {small:?}\n{stage}");
    let recipe = dir.path().join("recipe.toml");
    std::fs::write(&recipe, text).unwrap();
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    briquette::pipeline::run(&briquette::pipeline::Recipe::from_file(&recipe).unwrap(), &options).unwrap();
    export(&OnnxRequest::new(&small, &out), &options).unwrap();
    let of = |path: &Path| GraphNet::from_checkpoint(path, &Device::flex()).unwrap();
    let (family, exported) = (of(&small), of(&out.join("model.onnx")));
    let n_linear = |net: &GraphNet| net.graph().nodes.iter().filter(|node| node.op.name() == "linear").count();
    assert!(n_linear(&exported) > n_linear(&family), "{} {}", n_linear(&exported), n_linear(&family));
    let expected = unpadded(family.forward(&inputs(&family)));
    let difference = apart(&unpadded(exported.forward(&inputs(&exported))), &expected);
    assert!(difference <= TOLERANCE, "{difference}");
}

#[test]
fn every_exported_family_runs_as_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (mut wrong, mut n_equal) = (Vec::new(), 0);
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let out = dir.path().join(&name);
        let found = std::panic::catch_unwind(|| difference(&folder, &out)).unwrap_or_else(|_| Err("panicked".into()));
        println!("{name:28} {found:?}");
        match found {
            Ok(apart) if apart <= TOLERANCE => n_equal += 1,
            Err(message) if REFUSED.iter().any(|words| message.contains(words)) => {}
            other => wrong.push((name, other)),
        }
    }
    assert!(wrong.is_empty() && n_equal >= 60, "{n_equal} equal, wrong: {wrong:#?}");
}
