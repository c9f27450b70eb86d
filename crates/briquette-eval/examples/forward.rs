//! Runs a model once, for comparison with other implementations: `forward MODEL [INPUT OUT]`.
//!
//! INPUT is a text file (sentences for an encoder), or a safetensors file with `images`, or with `ids` (and
//! `mask`, 1 for each token that is not padding). The outputs are written to OUT as little-endian f32. Without
//! INPUT and OUT, the model is only loaded, and the peak resident memory is printed in bytes.

#![allow(clippy::print_stdout)]

use briquette_core::memory::{MemoryMeter, ResidentSet};
use briquette_eval::outputs;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::batches::Batching;
use briquette_models::data::Sentences;
use briquette_models::graph_net::RunInputs;
use briquette_models::{LoadedModel, ModelTask};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let model = args.first().ok_or("usage: forward MODEL [INPUT OUT]")?;
    let model = LoadedModel::open(Path::new(model), None, &Device::default())?;
    let [_, input, out] = args.as_slice() else {
        println!("{}", ResidentSet.peak_bytes().unwrap_or(0));
        return Ok(());
    };
    let values = outputs_of(&model, Path::new(input))?;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(out, bytes)?;
    Ok(())
}

fn outputs_of(model: &LoadedModel, input: &Path) -> Result<Vec<f32>, Box<dyn Error>> {
    let device = Device::default();
    if input.extension().is_some_and(|extension| extension == "txt") {
        let sentences = Sentences::read_lines(input)?;
        let how = Batching { batch_size: 8, workers: 0 };
        return Ok(outputs::embed(model, &sentences, how, &mut |_, _| Ok(()))?.values);
    }
    let data = match model.arch.task() {
        ModelTask::Classifier => {
            let (shape, images) = read(input, "images", f32::from_le_bytes)?;
            model.network.classify(Tensor::from_data(TensorData::new(images, shape), &device)).into_data()
        }
        ModelTask::Encoder => {
            let [ids, mask] = [tokens(input, "ids", &device)?, tokens(input, "mask", &device)?];
            model.network.encode(ids, mask.equal_elem(0)).into_data()
        }
        ModelTask::EncoderDecoder => {
            let [ids, mask, target] = ["ids", "mask", "target"].map(|name| tokens(input, name, &device));
            let source = RunInputs::padded(ids?, mask?.equal_elem(0));
            model.network.forward(&source.with_target(target?)).three().into_data()
        }
        ModelTask::Decoder => model.network.decode(tokens(input, "ids", &device)?).into_data(),
    };
    data.try_into_vec_as().map_err(|error| format!("{error:?}").into())
}

fn tokens(path: &Path, name: &str, device: &Device) -> Result<Tensor<2, Int>, Box<dyn Error>> {
    let (shape, values) = read(path, name, i32::from_le_bytes)?;
    Ok(Tensor::from_data(TensorData::new(values, shape), device))
}

/// Reads the shape and the four-byte elements of a tensor.
fn read<T>(path: &Path, name: &str, of_bytes: fn([u8; 4]) -> T) -> Result<(Vec<usize>, Vec<T>), Box<dyn Error>> {
    let checkpoint = Checkpoint::open(path)?;
    let index = checkpoint.tensors().iter().position(|info| info.name == name).ok_or("a tensor is missing")?;
    let info = &checkpoint.tensors()[index];
    let mut bytes = vec![0; info.n_bytes()];
    checkpoint.read(index, 0, &mut bytes)?;
    Ok((info.shape.0.clone(), bytes.as_chunks::<4>().0.iter().map(|bytes| of_bytes(*bytes)).collect()))
}
