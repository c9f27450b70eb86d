//! Times a training step of an MLP with and without masks and grids, and a refresh of the decisions.
//!
//! `bench_attach [--width 2048] [--layers 4] [--batch 64] [--steps 15]`
#![allow(clippy::print_stdout, missing_docs)]

use briquette_core::Result;
use briquette_nn::{Compression, Prune, Quantize, Schedule};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use std::time::Instant;

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward(x)))
    }
}

/// A model in training, with the times of its steps and refreshes.
struct Side {
    name: &'static str,
    model: Mlp,
    rules: Compression,
    optimizer: ModuleOptimizer,
    step_ms: Vec<f64>,
    refresh_ms: Vec<f64>,
}

impl Side {
    fn step(&mut self, x: &Tensor<2>) {
        let loss = (self.model.forward(x.clone()) - 1.0).square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        let model = self.take();
        self.model = self.optimizer.step(1e-4, model, grads);
    }

    /// Takes the model out: a second clone would keep its weights from being updated in place.
    fn take(&mut self) -> Mlp {
        std::mem::replace(&mut self.model, Mlp { layers: Vec::new() })
    }
}

fn main() -> Result<()> {
    let device = Device::flex().autodiff();
    let [width, n_layers, batch, n_steps] =
        [("--width", 2048), ("--layers", 4), ("--batch", 64), ("--steps", 15)].map(|(name, usual)| option(name, usual));
    let layers = (0..n_layers).map(|_| LinearConfig::new(width, width).init(&device)).collect();
    let model = Mlp { layers };
    let every_step = Schedule::linear(0..usize::MAX);
    let prune = || Prune::new("**.weight", 0.8).and_then(|rule| rule.starting_at(0.5)).map(|rule| rule.on(every_step));
    let int8 = || Quantize::new("**.weight", "int8").map(|rule| rule.on(Schedule::constant(0..usize::MAX)));
    let arms = [
        ("plain", Compression::new()),
        ("int8", Compression::new().quantize(int8()?)),
        ("mask", Compression::new().prune(prune()?)),
        ("mask + int8", Compression::new().prune(prune()?).quantize(int8()?)),
        ("global mask + int8", Compression::new().prune(prune()?.globally()).quantize(int8()?)),
    ];
    let mut sides = Vec::new();
    for (name, rules) in arms {
        let model = rules.attach(model.clone())?;
        let optimizer = AdamConfig::new().init();
        sides.push(Side { name, model, rules, optimizer, step_ms: Vec::new(), refresh_ms: Vec::new() });
    }
    drop(model);
    let x = Tensor::<2>::random([batch, width], Distribution::Normal(0.0, 1.0), &device);
    for step in 1..=n_steps + 1 {
        for side in &mut sides {
            let start = Instant::now();
            side.step(&x);
            let stepped = start.elapsed();
            let model = side.take();
            side.model = side.rules.refresh(model, step)?;
            // The first step allocates the optimizer's moments.
            if step > 1 {
                side.step_ms.push(stepped.as_secs_f64() * 1e3);
                side.refresh_ms.push((start.elapsed() - stepped).as_secs_f64() * 1e3);
            }
        }
    }
    let plain = median(&sides[0].step_ms);
    let n_weights = n_layers * width * width;
    println!("{n_layers} x [{width}, {width}], {n_weights} weights, batch {batch}, medians of {n_steps}");
    for side in &sides {
        let (step, refresh) = (median(&side.step_ms), median(&side.refresh_ms));
        println!("{:20} step {step:7.1} ms ({:.2}x plain), refresh {refresh:6.1} ms", side.name, step / plain);
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
