//! Runs an ONNX model, or an output that has its network, on given inputs: `run_onnx MODEL INPUTS OUTPUTS RUNS`.
//!
//! INPUTS is a safetensors file with an f32 tensor for each input, by its name; integers are exact below 2²⁴. All outputs are written
//! to OUTPUTS in the same way. The median time of RUNS further runs is printed in milliseconds, then the milliseconds of the first.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette_core::DType;
use briquette_formats::{Checkpoint, TensorSource, safetensors};
use briquette_graph::onnx::InputDims;
use briquette_models::graph_net::{AnyTensor, GraphNet};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, inputs, outputs, runs] = args.as_slice() else {
        return Err("usage: run_onnx MODEL INPUTS OUTPUTS RUNS".into());
    };
    let device = Device::default();
    let (given, numbers) = read(Path::new(inputs), &device)?;
    let network = match Path::new(model) {
        output if output.join("network.onnx").is_file() => GraphNet::from_checkpoint(output, &device)?,
        file => {
            let shapes = given.iter().map(|(name, value)| (name.clone(), value.dims())).collect();
            GraphNet::from_onnx(file, &InputDims { shapes, numbers, ..InputDims::default() }, &device)?
        }
    };
    let (found, first) = timed(&network, &given)?;
    std::fs::write(outputs, safetensors::to_file(&stored(found)?)?)?;
    let mut times = Vec::new();
    for _ in 0..runs.parse()? {
        times.push(timed(&network, &given)?.1);
    }
    times.sort_by(f64::total_cmp);
    println!("{:.3} {first:.3}", times.get(times.len() / 2).copied().unwrap_or(first));
    Ok(())
}

type Named = Vec<(String, AnyTensor)>;

/// Returns the outputs of a run, and its time in milliseconds.
fn timed(network: &GraphNet, given: &Inputs) -> Result<(Named, f64), Box<dyn Error>> {
    let start = Instant::now();
    let found = network.run_named(given)?;
    Ok((found, start.elapsed().as_secs_f64() * 1e3))
}

type Inputs = BTreeMap<String, AnyTensor>;

/// Returns the inputs, and those that are single numbers.
fn read(path: &Path, device: &Device) -> Result<(Inputs, BTreeMap<String, f64>), Box<dyn Error>> {
    let checkpoint = Checkpoint::open(path)?;
    let (mut found, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for (at, info) in checkpoint.tensors().iter().enumerate() {
        let mut bytes = vec![0; info.n_bytes()];
        checkpoint.read(at, 0, &mut bytes)?;
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let n = values.len();
        if info.shape.0.is_empty() {
            numbers.insert(info.name.to_string(), values.first().copied().map_or(0.0, f64::from));
        }
        let flat = AnyTensor::from(Tensor::<1>::from_data(TensorData::new(values, [n]), device));
        let shape = if info.shape.0.is_empty() { vec![1] } else { info.shape.0.clone() };
        found.insert(info.name.to_string(), flat.reshaped(&shape));
    }
    Ok((found, numbers))
}

type Stored = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

fn stored(outputs: Named) -> Result<Stored, Box<dyn Error>> {
    let mut found = Stored::new();
    for (name, value) in outputs {
        let bytes = value.to_f32(&name)?.iter().flat_map(|value| value.to_le_bytes()).collect();
        found.insert(name, (DType::F32, value.dims(), bytes));
    }
    Ok(found)
}
