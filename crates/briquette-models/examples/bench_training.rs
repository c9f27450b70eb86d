//! Times a training step with and without masks, alternating.
//!
//! Inputs are sentences. Targets are the plain model's embeddings, or the next tokens for a decoder.
//!
//! `bench_training [--model models/minilm] [--batch 16] [--length 64] [--steps 20] [--sparsity 0.4]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_models::text::Pooling;
use briquette_models::{GraphNet, Input, LoadedModel, ModelTask};
use briquette_nn::{Compression, Prune};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::path::Path;
use std::time::Instant;

/// A network in training, with the times of its steps.
struct Side {
    network: GraphNet,
    optimizer: ModuleOptimizer,
    ms: Vec<f64>,
}

/// Sentences of full length and their targets.
struct TokenBatch {
    ids: Tensor<2, Int>,
    padding: Tensor<2, Bool>,
    /// Embeddings; `None` if the targets are the next tokens.
    targets: Option<(Pooling, Tensor<2>)>,
}

fn main() {
    let device = Device::default().autodiff();
    let model = LoadedModel::open(Path::new(&option("--model", "models/minilm")), None, &device).unwrap();
    let is_decoder = model.arch.task() == ModelTask::Decoder;
    let Input::Text { pooling, .. } = model.input else { panic!("a model of text is needed") };
    let number = |name, usual| option(name, usual).parse::<usize>().unwrap();
    let pooling = (!is_decoder).then_some(pooling);
    let batch = batch(&model.network, pooling, [number("--batch", "16"), number("--length", "64")]);
    let sparsity = option("--sparsity", "0.4").parse().unwrap();
    let masked = if is_decoder { "**.layers.**.weight" } else { "**.encoder.**.weight" };
    let rules = Compression::new().prune(Prune::new(masked, sparsity).unwrap());
    let masked = rules.attach(model.network.clone()).unwrap();
    let side = |network| Side { network, optimizer: AdamWConfig::new().init(), ms: Vec::new() };
    let mut sides = [side(model.network), side(masked)];
    for step in 0..number("--steps", "20") + 1 {
        for side in &mut sides {
            let start = Instant::now();
            side.step(&batch);
            // The first step allocates the optimizer's moments.
            if step > 0 {
                side.ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let [plain, masked] = sides.map(|side| median(side.ms));
    println!("a training step: {plain:.1} ms without masks, {masked:.1} ms with ({:.2}x)", masked / plain);
}

impl Side {
    fn step(&mut self, batch: &TokenBatch) {
        let grads = GradientsParams::from_grads(batch.loss(&self.network).backward(), &self.network);
        self.network = self.optimizer.step(1e-5, self.network.clone(), grads);
    }
}

impl TokenBatch {
    fn loss(&self, network: &GraphNet) -> Tensor<1> {
        match &self.targets {
            Some((pooling, targets)) => {
                let embedded = network.encode(self.ids.clone(), self.padding.clone());
                (pooling.apply(embedded, self.padding.clone()) - targets.clone()).square().mean()
            }
            None => {
                let (decoder, [batch, length]) = (network.as_decoder(), self.ids.dims());
                let scores = decoder.scores(decoder.last_state(self.ids.clone())).narrow(1, 0, length - 1);
                let next = self.ids.clone().narrow(1, 1, length - 1).reshape([batch, length - 1, 1]);
                -log_softmax(scores, 2).gather(2, next).mean()
            }
        }
    }
}

fn batch(network: &GraphNet, pooling: Option<Pooling>, shape: [usize; 2]) -> TokenBatch {
    let device = Device::default();
    let n: usize = shape.iter().product();
    let ids: Vec<i32> = (0..n).map(|i| 1000 + (i * 7919 % 20_000) as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &device);
    let padding = Tensor::<2, Bool>::from_data(TensorData::new(vec![false; n], shape), &device);
    let targets = pooling.map(|pooling| {
        let embedded = network.valid().encode(ids.clone(), padding.clone());
        let targets = pooling.apply(embedded, padding.clone());
        (pooling, targets)
    });
    TokenBatch { ids, padding, targets }
}

fn option(name: &str, usual: &str) -> String {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == name);
    at.and_then(|at| args.get(at + 1)).map_or_else(|| usual.to_string(), Clone::clone)
}

fn median(mut ms: Vec<f64>) -> f64 {
    ms.sort_by(f64::total_cmp);
    ms[ms.len() / 2]
}
