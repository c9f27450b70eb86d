//! Runs an ONNX model by rten on given inputs: `run-rten MODEL INPUTS OUTPUTS RUNS`.
//!
//! Files and output are those of the example `run_onnx` of crates/briquette-models: INPUTS is a safetensors file with an f32 tensor
//! for each input, and the median time of RUNS runs after the first is printed in milliseconds. Weights are packed when the model
//! is loaded, which is rten's fastest setting. `RTEN_NUM_THREADS` sets the number of threads.

use rten_tensor::prelude::*;
use rten::{DataType, ModelOptions, NodeId, Value, ValueOrView, ValueType};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::error::Error;
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
        return Err("usage: run-rten MODEL INPUTS OUTPUTS RUNS".into());
    };
    let model = ModelOptions::with_all_ops().prepack_weights(true).load_file(model)?;
    let given = std::fs::read(inputs)?;
    let mut values: Vec<(NodeId, Value)> = Vec::new();
    for (name, tensor) in SafeTensors::deserialize(&given)?.tensors() {
        let id = model.node_id(&name)?;
        values.push((id, value(&tensor, model.node_info(id).and_then(|info| info.dtype()))?));
    }
    let run = || {
        let inputs = values.iter().map(|(id, value)| (*id, ValueOrView::View(value.as_view()))).collect();
        let start = Instant::now();
        let found = model.run(inputs, model.output_ids(), None)?;
        Ok::<_, Box<dyn Error>>((found, start.elapsed().as_secs_f64() * 1e3))
    };
    let (found, first) = run()?;
    let mut stored = Vec::new();
    for (id, value) in model.output_ids().iter().zip(found) {
        let name = model.node_info(*id).and_then(|info| info.name().map(str::to_string)).ok_or("an output has no name")?;
        let Value::FloatTensor(tensor) = value else { continue };
        let bytes: Vec<u8> = tensor.iter().flat_map(|value| value.to_le_bytes()).collect();
        stored.push((name, tensor.shape().to_vec(), bytes));
    }
    let views = stored.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    std::fs::write(outputs, safetensors::serialize(views, None)?)?;
    let mut times = (0..runs.parse()?).map(|_| Ok(run()?.1)).collect::<Result<Vec<f64>, Box<dyn Error>>>()?;
    times.sort_by(f64::total_cmp);
    println!("{:.3} {first:.3}", times.get(times.len() / 2).copied().unwrap_or(first));
    Ok(())
}

/// Returns a tensor of the type that the model declares.
fn value(tensor: &TensorView, of: Option<ValueType>) -> Result<Value, Box<dyn Error>> {
    let floats = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    Ok(match of {
        Some(ValueType::Tensor(DataType::Int32)) => {
            Value::from_shape(tensor.shape(), floats.map(|value| value as i32).collect::<Vec<i32>>())?
        }
        _ => Value::from_shape(tensor.shape(), floats.collect::<Vec<f32>>())?,
    })
}
