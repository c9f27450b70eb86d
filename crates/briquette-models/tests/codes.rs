//! Networks of every family run on int8 codes as a simulation in floats does.
//!
//! The simulation fake-quantizes weights, and the inputs of layers with a scale per row, as training does.

#![allow(clippy::print_stdout)]

use briquette_core::Role;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::{Composite, InputSource, Op};
use briquette_models::GraphNet;
use briquette_models::graph_net::{AnyTensor, RunInputs};
use briquette_nn::{Compression, DynamicSpec, NameMap, Quantize, dense_tensors, load_into, quantize_dynamic};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};

/// Largest difference, as a share of the largest output.
const TOLERANCE: f32 = 1e-3;

fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// Returns token ids, or images of the size that the network takes; of encoder-decoders a source and a target.
fn inputs(folder: &Path, seed: u64) -> RunInputs {
    let device = Device::flex();
    let golden = Checkpoint::open(&folder.join("golden.safetensors")).unwrap();
    let images = golden.tensors().iter().find(|info| info.name == "images");
    match images {
        Some(info) => {
            let n = info.shape.0.iter().product::<usize>() as u64;
            let pixels: Vec<f32> = (0..n).map(|at| 2.0 * briquette_core::random::uniform(seed, at) - 1.0).collect();
            RunInputs::images(Tensor::from_data(TensorData::new(pixels, info.shape.0.clone()), &device))
        }
        None => {
            let ids = |seed, shape: [usize; 2]| {
                let id = |at| 3 + (briquette_core::random::uniform(seed, at) * 36.0) as i64;
                let ids: Vec<i64> = (0..(shape[0] * shape[1]) as u64).map(id).collect();
                Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &device)
            };
            let has = |name: &str| golden.tensors().iter().find(|info| info.name == name);
            let source = match has("features") {
                Some(info) => {
                    let n = info.shape.0.iter().product::<usize>() as u64;
                    let values: Vec<f32> =
                        (0..n).map(|at| 2.0 * briquette_core::random::uniform(seed, at) - 1.0).collect();
                    RunInputs::sounds(Tensor::from_data(TensorData::new(values, info.shape.0.clone()), &device))
                }
                None => RunInputs::tokens(ids(seed, [2, 12])),
            };
            if has("target").is_some() { source.with_target(ids(seed + 100, [2, 7])) } else { source }
        }
    }
}

fn values(output: AnyTensor) -> Vec<f32> {
    output.to_f32("outputs").unwrap()
}

/// Returns the largest difference over the largest value.
fn apart(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    found.iter().zip(expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// Rules for linear layers and convolutions. Tables stay floats: training does not round the inputs of a tied head.
fn rules(network: &GraphNet, names: &NameMap) -> Compression {
    let parameters = names.parameters(network).unwrap();
    // Convolutions over time have no kernel for codes.
    let runs_on_codes = |path: &str| !path.contains("encoder.conv");
    let layers = parameters
        .iter()
        .filter(|parameter| matches!(parameter.role, Role::Linear | Role::Conv) && runs_on_codes(&parameter.path));
    layers.fold(Compression::new(), |rules, layer| rules.quantize(Quantize::new(&layer.path, "int8-dynamic").unwrap()))
}

/// Returns the output, without steps that are fused on codes: they quantize attention too, and have a coarser GELU.
fn output(network: &GraphNet, inputs: &RunInputs) -> Vec<f32> {
    let graph = network.graph();
    let takes_images = graph.inputs.iter().any(|input| input.source == InputSource::Images);
    let is_fused = |op: &Op| matches!(op, Op::Composite(Composite::Attention(_) | Composite::Linear));
    let is_in_block = |at: &usize| graph.blocks.iter().any(|block| block.nodes.contains(at));
    let nodes = (0..graph.nodes.len()).filter(is_in_block).map(|at| &graph.nodes[at]);
    let used = nodes.filter(|node| is_fused(&node.op)).flat_map(|node| node.values());
    // CLIP has a network of texts too, which images do not need.
    let projected = used
        .map(|(_, value)| graph.values[value.0].as_str())
        .filter(|name| !(takes_images && name.starts_with("text_model.")));
    let output = if takes_images { graph.outputs.last() } else { graph.outputs.first() };
    let names: Vec<&str> = std::iter::once(graph.values[output.unwrap().0].as_str()).chain(projected).collect();
    values(network.tap(inputs, &names).unwrap().remove(0))
}

/// Returns how far apart codes and their simulation are, and codes and floats: medians over inputs.
///
/// Where a value is halfway between two codes, the last bit of a sum decides, and outputs differ by a step.
fn differences(folder: &Path, nets: [&GraphNet; 3]) -> [f32; 2] {
    let one = |seed| {
        let [of_floats, simulated, served] = nets.map(|net| output(net, &inputs(folder, seed)));
        [apart(&served, &simulated), apart(&served, &of_floats)]
    };
    let all: Vec<[f32; 2]> = (0..5).map(one).collect();
    [0, 1].map(|of| {
        let mut sorted: Vec<f32> = all.iter().map(|both| both[of]).collect();
        sorted.sort_by(f32::total_cmp);
        sorted[2]
    })
}

/// Returns the effective weights in bytes.
fn dense(module: &GraphNet, names: &NameMap) -> Vec<(String, Vec<u8>)> {
    let tensors = dense_tensors(module, names).unwrap();
    tensors.into_iter().map(|(name, tensor)| (name, safetensors::View::data(&tensor).to_vec())).collect()
}

#[test]
fn int8_with_dynamic_inputs_equals_its_simulation_for_every_family() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let (checkpoint, device) = (Checkpoint::open(&folder).unwrap(), Device::flex());
        let (network, names) = GraphNet::unfilled(&checkpoint, &device).unwrap();
        let network = load_into(network, &checkpoint, &names).unwrap();
        let attached = rules(&network, &names).attach(network.clone()).unwrap();
        let quantized = quantize_dynamic(network.clone(), &DynamicSpec::new().without_embeddings()).unwrap();
        let [found, of_floats] = differences(&folder, [&network, &attached, &quantized.module]);
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        println!("{name:20} {found:.1e} from the simulation, {of_floats:.1e} from floats");
        // CLIP and Whisper add their positions whole: they are no layer. Convolutions over time stay floats.
        let floats: &[&str] = match name.as_str() {
            "whisper" => &["encoder.embed_positions.weight", "conv1.weight", "conv2.weight"],
            _ => &["position_embedding.weight"],
        };
        let is_float = |path: &String| floats.iter().any(|end| path.ends_with(end));
        let is_layer = |path: &String| path.ends_with(".weight") && !is_float(path);
        let is_whole = !quantized.left.keys().any(is_layer);
        let is_dense = dense(&quantized.module.materialize(), &names) == dense(&attached.materialize(), &names);
        if found > TOLERANCE || of_floats <= TOLERANCE || !is_whole || !is_dense {
            wrong.push((name, found, of_floats, is_whole, is_dense));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
