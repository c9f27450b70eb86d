//! Networks of every family run on int8 codes as a simulation in floats does.
//!
//! The simulation fake-quantizes weights, and the inputs of layers with a scale per row, as training does.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::GraphNet;
use briquette_models::graph_net::{AnyTensor, RunInputs};
use briquette_nn::{Compression, DynamicSpec, Quantize, dense_tensors, load_into, quantize_dynamic};
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

/// Returns token ids, or images of the size that the network takes.
fn inputs(folder: &Path) -> RunInputs {
    let device = Device::flex();
    let golden = Checkpoint::open(&folder.join("golden.safetensors")).unwrap();
    let images = golden.tensors().iter().find(|info| info.name == "images");
    match images {
        Some(info) => {
            let n = info.shape.0.iter().product::<usize>() as u64;
            let pixels: Vec<f32> = (0..n).map(|at| 2.0 * briquette_core::random::uniform(3, at) - 1.0).collect();
            RunInputs::images(Tensor::from_data(TensorData::new(pixels, info.shape.0.clone()), &device))
        }
        None => {
            let ids: Vec<i64> = (0..24).map(|at| 3 + at * 11 % 35).collect();
            RunInputs::tokens(Tensor::<2, Int>::from_data(TensorData::new(ids, [2, 12]), &device))
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

#[test]
fn int8_with_dynamic_inputs_equals_its_simulation_for_every_family() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let (checkpoint, device) = (Checkpoint::open(&folder).unwrap(), Device::flex());
        let (network, names) = GraphNet::blank(&checkpoint, &device).unwrap();
        let network = load_into(network, &checkpoint, &names).unwrap();
        let inputs = inputs(&folder);
        let rules = Compression::new().quantize(Quantize::new("**.weight", "int8-dynamic").unwrap());
        let attached = rules.attach(network.clone()).unwrap();
        let simulated = values(attached.forward(&inputs));
        let quantized = quantize_dynamic(network.clone(), &DynamicSpec::new()).unwrap();
        let served = values(quantized.module.forward(&inputs));
        let (found, of_floats) = (apart(&served, &simulated), apart(&served, &values(network.forward(&inputs))));
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        println!("{name:20} {found:.1e} from the simulation, {of_floats:.1e} from floats; left {:?}", quantized.left);
        let dense = |module: &GraphNet| {
            let tensors = dense_tensors(module, &names).unwrap();
            tensors.into_iter().map(|(name, tensor)| (name, safetensors::View::data(&tensor).to_vec())).collect::<Vec<_>>()
        };
        if found > TOLERANCE || of_floats <= TOLERANCE || !quantized.left.is_empty() {
            wrong.push((name, found, of_floats));
        } else if dense(&quantized.module.materialize()) != dense(&attached.materialize()) {
            wrong.push((name, f32::NAN, of_floats));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
