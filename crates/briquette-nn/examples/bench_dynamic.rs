//! Times `quantize_dynamic` on a network with an LSTM of burn between layers that run on codes.
//!
//! `bench_dynamic [--width 256] [--length 32] [--batch 8] [--runs 41]`
#![allow(clippy::print_stdout, missing_docs)]

use briquette_core::Result;
use briquette_nn::layers::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use briquette_nn::{DynamicSpec, quantize_dynamic};
use burn::module::Module;
use burn::nn::{Lstm, LstmConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::time::Instant;

const N_WORDS: usize = 4096;

#[derive(Module, Debug)]
struct Tagger {
    table: Embedding,
    up: Linear,
    memory: Lstm,
    head: Linear,
}

impl Tagger {
    fn new(width: usize, device: &Device) -> Self {
        Self {
            table: EmbeddingConfig::new(N_WORDS, width).init(device),
            up: LinearConfig::new(width, width).init(device),
            memory: LstmConfig::new(width, width, true).init(device),
            head: LinearConfig::new(width, N_WORDS).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let (states, _) = self.memory.forward(self.up.forward(self.table.forward(ids)), None);
        self.head.forward(states)
    }
}

fn main() -> Result<()> {
    let device = Device::flex();
    let [width, length, batch, n_runs] =
        [("--width", 256), ("--length", 32), ("--batch", 8), ("--runs", 41)].map(|(name, usual)| option(name, usual));
    let floats = Tagger::new(width, &device);
    let codes = quantize_dynamic(floats.clone(), &DynamicSpec::default())?;
    let left: Vec<&str> = codes.left.keys().map(String::as_str).collect();
    println!("width {width}, length {length}, batch {batch}, medians of {n_runs}; left as floats: {}", left.join(", "));
    let all = quantize_dynamic(floats.clone(), &DynamicSpec::default().with_slower())?;
    let ids = (0..batch * length).map(|i| (i * 7 % N_WORDS) as i64).collect::<Vec<_>>();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [batch, length]), &device);
    let mut sides = [("floats", floats), ("quantize_dynamic", codes.module), ("with_slower", all.module)]
        .map(|(name, model)| (name, model, Vec::new()));
    for run in 0..=n_runs {
        for (_, model, ms) in &mut sides {
            let start = Instant::now();
            let output = model.forward(ids.clone()).into_data();
            let elapsed = start.elapsed().as_secs_f64() * 1e3;
            drop(output);
            // The first run allocates.
            if run > 0 {
                ms.push(elapsed);
            }
        }
    }
    let floats = median(&sides[0].2);
    for (name, _, ms) in &sides {
        println!("{name:18} {:7.2} ms ({:.2}x of floats)", median(ms), median(ms) / floats);
    }
    Ok(())
}

fn option(name: &str, usual: usize) -> usize {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == name);
    at.and_then(|at| args.get(at + 1)).and_then(|value| value.parse().ok()).unwrap_or(usual)
}

fn median(ms: &[f64]) -> f64 {
    let mut ms = ms.to_vec();
    ms.sort_by(f64::total_cmp);
    ms.get(ms.len() / 2).copied().unwrap_or(f64::NAN)
}
