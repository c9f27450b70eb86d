//! Networks of every family agree with transformers and torchvision, on tiny random weights.
//!
//! `fixtures/make_family_goldens.py` writes models and reference outputs.

use crate::golden::{Golden, folders};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::{Extents, ValueId, graph_of};
use briquette_models::CacheType;
use briquette_models::graph_net::{GraphNet, RunInputs};
use briquette_nn::load_into;
use burn::tensor::{Bool, Device, Int, Tensor};
use std::path::Path;

/// Largest difference, as a share of the largest output.
const TOLERANCE: f32 = 1e-4;

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap().to_str().unwrap().to_string()
}

/// Returns the largest difference over the largest reference value.
fn difference(found: Vec<f32>, expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most: f32, one| if one.is_nan() { f32::INFINITY } else { most.max(one) }) / largest
}

/// Returns the values at tokens that are no padding.
fn unpadded(values: Tensor<3>, padding: &Tensor<2, Bool>) -> Vec<f32> {
    let kept = padding.clone().bool_not().float().unsqueeze_dim::<3>(2);
    (values * kept).into_data().try_into_vec_as::<f32>().unwrap()
}

fn run(folder: &Path) -> f32 {
    let (golden, device) = (Golden::of(folder), Device::flex());
    let net = GraphNet::from_checkpoint(folder, &device).unwrap();
    if let Some(found) = difference_of_classes(&net, &golden) {
        return found;
    }
    if golden.0.contains_key("target") {
        let name = if golden.0.contains_key("logits") { "logits" } else { "hidden" };
        return difference(net.forward(&golden.pair()).to_f32("an output").unwrap(), &golden.0[name].1);
    }
    if golden.ids("ids").is_some() {
        let padding = golden.padding();
        // Networks with one output return the logits of their head, others begin with hidden states.
        let is_head = net.graph().outputs.len() == 1 && golden.0.contains_key("logits");
        let name = if is_head { "logits" } else { "hidden" };
        let expected = unpadded(golden.floats(name), &padding);
        return difference(unpadded(net.forward(&golden.inputs()).three(), &padding), &expected);
    }
    let name = if golden.0.contains_key("logits") { "logits" } else { "hidden" };
    let found = net.forward(&RunInputs::images(golden.floats("images")));
    let found = match name {
        "logits" => found.two().into_data(),
        _ => net
            .tap(&RunInputs::images(golden.floats("images")), &[&hidden_of(&net)])
            .unwrap()
            .remove(0)
            .three()
            .into_data(),
    };
    difference(found.try_into_vec_as::<f32>().unwrap(), &golden.0[name].1)
}

/// Returns the name of the first output: hidden states.
fn hidden_of(net: &GraphNet) -> String {
    let graph = net.graph();
    graph.values[graph.outputs[0].0].clone()
}

#[test]
fn outputs_equal_the_reference() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let found = std::panic::catch_unwind(|| run(&folder)).unwrap_or(f32::INFINITY);
        println!("{:16} {found:.2e}", name_of(&folder));
        if found > TOLERANCE {
            wrong.push((name_of(&folder), found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Returns the differences of every output of a graph with several: hidden states, pooled states, logits.
fn differences(folder: &Path) -> Vec<f32> {
    let (golden, device, checkpoint) = (Golden::of(folder), Device::flex(), Checkpoint::open(folder).unwrap());
    let extents = Extents { batch: 2, tokens: 12, ..Extents::default() };
    let graph = graph_of(&checkpoint, extents).unwrap().unwrap();
    let keys: Vec<&str> =
        ["hidden", "pooled", "logits"].into_iter().filter(|key| golden.0.contains_key(*key)).collect();
    if graph.outputs.len() != keys.len() || golden.0.contains_key("target") {
        return Vec::new();
    }
    let one = |(&output, key): (&ValueId, &str)| {
        let whole = briquette_graph::Graph { outputs: vec![output], ..graph.clone() };
        let has = |name: &&String| checkpoint.tensors().iter().any(|info| info.name == name.as_str());
        let others = graph.unused.iter().chain(graph.weights.iter().flat_map(|weight| &weight.aliases).filter(has));
        let (net, names) = GraphNet::of_graph(whole, &device).unwrap();
        let names = others.fold(names, |names, name| names.ignore(name).unwrap());
        let net = load_into(net, &checkpoint, &names).unwrap();
        let found = net.forward(&golden.inputs());
        match golden.0[key].0.len() {
            3 if golden.ids("ids").is_some() => {
                let expected = unpadded(golden.floats(key), &golden.padding());
                difference(unpadded(found.three(), &golden.padding()), &expected)
            }
            _ => difference(found.to_f32("an output").unwrap(), &golden.0[key].1),
        }
    };
    graph.outputs.iter().zip(keys).map(one).collect()
}

/// Returns the difference of a text classifier's logits, as a whole and after the last block; `None` for other networks.
fn difference_of_classes(net: &GraphNet, golden: &Golden) -> Option<f32> {
    if !net.classifies_text() {
        return None;
    }
    let expected = &golden.0["logits"].1;
    let logits = net.forward(&golden.inputs());
    let whole = match logits.dims().len() {
        3 => {
            let padding = golden.padding();
            difference(unpadded(logits.three(), &padding), &unpadded(golden.floats("logits"), &padding))
        }
        _ => difference(logits.to_f32("logits").unwrap(), expected),
    };
    // The last block's output has no padding in a layerwise run.
    let ids = golden.ids("ids").unwrap().narrow(0, 0, 1);
    let padding = ids.clone().equal_elem(i64::MIN);
    let at_once = net.classify_text(ids.clone(), padding.clone(), None).to_data().try_into_vec_as::<f32>().unwrap();
    let states = net.encode(ids, padding);
    Some(
        whole.max(difference(
            net.classes_of(states.into(), None).into_data().try_into_vec_as::<f32>().unwrap(),
            &at_once,
        )),
    )
}

#[test]
fn classifiers_of_texts_and_tokens_are_recognized() {
    let classify = |folder: &Path| GraphNet::from_checkpoint(folder, &Device::flex()).unwrap().classifies_text();
    let found: Vec<String> = folders().iter().filter(|folder| classify(folder)).map(|folder| name_of(folder)).collect();
    assert!(found.len() >= 16, "{found:?}");
    let of_decoders = ["llama-classify", "gpt2-classify", "opt-classify", "qwen3-tokens", "gpt_neox-tokens"];
    assert!(of_decoders.iter().all(|name| found.iter().any(|other| other == name)), "{found:?}");
    for name in ["albert-classify", "bert", "bert-tokens", "modernbert-tokens", "mpnet-classify", "xlm-roberta"] {
        assert!(found.iter().any(|other| other == name), "{name}: {found:?}");
    }
}

#[test]
fn every_head_equals_the_reference() {
    let (mut wrong, mut n_heads) = (Vec::new(), 0);
    for folder in folders() {
        let found = std::panic::catch_unwind(|| differences(&folder)).unwrap_or_else(|_| vec![f32::INFINITY]);
        n_heads += found.len().saturating_sub(1);
        if found.iter().any(|found| *found > TOLERANCE) {
            wrong.push((name_of(&folder), found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(n_heads > 25, "{n_heads}");
}

/// Returns the first source of an encoder-decoder.
fn first_source(golden: &Golden) -> RunInputs {
    match golden.ids("ids") {
        Some(ids) => RunInputs::tokens(ids.narrow(0, 0, 1)),
        None => RunInputs::sounds(golden.floats::<3>("features").narrow(0, 0, 1)),
    }
}

/// Returns the greedy tokens after a prompt, with cached keys and values.
fn greedy(network: &GraphNet, golden: &Golden, prompt: Tensor<2, Int>, n: usize) -> Vec<i64> {
    let decoder = network.as_decoder();
    let mut caches = match network.is_encoder_decoder() {
        true => network.read_source(&first_source(golden), CacheType::F32),
        false => vec![decoder.key_values(CacheType::F32)],
    };
    let (mut next, mut chosen) = (prompt, Vec::new());
    for _ in 0..n {
        let state = decoder.next_state(next, &mut caches);
        let last = state.dims()[1] - 1;
        let best = decoder.scores(state.narrow(1, last, 1)).argmax(2).reshape([1, 1]);
        chosen.push(best.clone().into_data().try_into_vec_as::<i64>().unwrap()[0]);
        next = best;
    }
    chosen
}

/// Returns the greedy tokens after a prompt, without a cache.
fn greedy_anew(network: &GraphNet, prompt: Tensor<2, Int>, n: usize) -> Vec<i64> {
    let (mut tokens, mut chosen) = (prompt, Vec::new());
    for _ in 0..n {
        let logits = network.decode(tokens.clone());
        let last = logits.dims()[1] - 1;
        let best = logits.narrow(1, last, 1).argmax(2).reshape([1, 1]);
        chosen.push(best.clone().into_data().try_into_vec_as::<i64>().unwrap()[0]);
        tokens = Tensor::cat(vec![tokens, best], 1);
    }
    chosen
}

#[test]
fn greedy_tokens_equal_the_reference() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let golden = Golden::of(&folder);
        let (Some(prompt), Some(expected)) = (golden.ids("prompt"), golden.ids("greedy")) else { continue };
        let expected = expected.into_data().try_into_vec_as::<i64>().unwrap();
        let run = || {
            let network = GraphNet::from_checkpoint(&folder, &Device::flex()).unwrap();
            // Dynamic and LongRoPE frequencies change with the length of the text. Cached keys keep the frequencies of their time, and the
            // reference has no cache.
            match ["dynamic", "longrope"].iter().any(|kind| name_of(&folder).contains(kind)) {
                true => greedy_anew(&network, prompt.clone(), expected.len()),
                false => greedy(&network, &golden, prompt.clone(), expected.len()),
            }
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(found) if found == expected => {}
            other => wrong.push((name_of(&folder), other.is_ok())),
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
