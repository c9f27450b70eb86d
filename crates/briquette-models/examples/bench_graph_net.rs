//! Times a network that was written by hand and the same network as a graph, in turn.
//!
//! `bench_graph_net MODEL [--int8] [--batch 1] [--length 128] [--token] [--train] [--pairs 20] [--calls 1]`;
//! `RAYON_NUM_THREADS` sets the number of threads. A pair is a call of each, in alternating order.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_models::{CacheType, GraphNet, Input, LoadedModel, ModelTask, Network};
use briquette_nn::{DynamicSpec, quantize_dynamic};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use std::path::Path;
use std::time::Instant;

struct Bench {
    task: ModelTask,
    shape: [usize; 2],
    image: [usize; 3],
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Forward,
    /// One token after a prompt.
    Token,
    Train,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let number = |name: &str, usual: usize| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or(usual, |at| args[at + 1].parse().unwrap())
    };
    let kind = if has("--token") { Kind::Token } else if has("--train") { Kind::Train } else { Kind::Forward };
    let device = if kind == Kind::Train { Device::default().autodiff() } else { Device::default() };
    let path = Path::new(&args[0]);
    let model = LoadedModel::open(path, None, &device).unwrap();
    let image = match &model.input {
        Input::Images(images) => [images.channels, images.crop[0], images.crop[1]],
        Input::Text { .. } => [0; 3],
    };
    let bench = Bench {
        task: model.arch.task(),
        shape: [number("--batch", 1), number("--length", 128)],
        image,
        kind,
    };
    let graph = Network::Graph(GraphNet::from_checkpoint(path, &device).unwrap());
    let networks = [model.network, graph].map(|network| match has("--int8") {
        true => quantize_dynamic(network, &DynamicSpec::default()).unwrap().module,
        false => network,
    });
    let (calls, mut ms) = (number("--calls", 1), [Vec::new(), Vec::new()]);
    let mut sides = networks.map(|network| bench.side(network));
    for pair in 0..number("--pairs", 20) + 1 {
        for place in 0..2 {
            let side = (pair + place) % 2;
            let start = Instant::now();
            (0..calls).for_each(|_| sides[side]());
            if pair > 0 {
                ms[side].push(start.elapsed().as_secs_f64() * 1e3 / calls as f64);
            }
        }
    }
    let mut ratios: Vec<f64> = ms[1].iter().zip(&ms[0]).map(|(graph, hand)| graph / hand).collect();
    let middle = median(&mut ratios);
    let [low, high] = [ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]];
    let [hand, graph] = ms.map(|mut ms| median(&mut ms));
    println!("{} by hand {hand:.3} ms, graph {graph:.3} ms, {middle:.3}x ({low:.3} to {high:.3})", args.join(" "));
}

impl Bench {
    fn side<'a>(&'a self, network: Network) -> Box<dyn FnMut() + 'a> {
        match (self.kind, self.task) {
            (Kind::Token, _) => self.one_token(network),
            (Kind::Train, _) => self.training(network),
            (Kind::Forward, _) => {
                let input = self.tokens();
                Box::new(move || drop(std::hint::black_box(self.scores(&network, input.clone()).into_data())))
            }
        }
    }

    fn tokens(&self) -> Tensor<2, Int> {
        let ids: Vec<i32> = (0..self.shape[0] * self.shape[1]).map(|i| 1000 + (i * 7919 % 20_000) as i32).collect();
        Tensor::from_data(TensorData::new(ids, self.shape), &Device::default())
    }

    fn scores(&self, network: &Network, ids: Tensor<2, Int>) -> Tensor<2> {
        match self.task {
            ModelTask::Classifier => {
                let [channels, height, width] = self.image;
                network.classify(Tensor::ones([self.shape[0], channels, height, width], &Device::default()))
            }
            ModelTask::Encoder => {
                let no = Tensor::<2, Bool>::from_data(
                    TensorData::new(vec![false; ids.dims().iter().product()], ids.dims()),
                    &Device::default(),
                );
                network.encode(ids, no).flatten(1, 2)
            }
            ModelTask::Decoder => network.as_decoder().last_state(ids).flatten(1, 2),
        }
    }

    fn one_token<'a>(&'a self, network: Network) -> Box<dyn FnMut() + 'a> {
        let ids = self.tokens();
        let mut caches = [network.as_decoder().key_values(CacheType::F32)];
        drop(network.as_decoder().next_state(ids.clone(), &mut caches));
        let one = ids.narrow(1, 0, 1);
        let caches = caches[0].clone();
        Box::new(move || {
            let mut caches = [caches.clone()];
            let decoder = network.as_decoder();
            drop(std::hint::black_box(decoder.scores(decoder.next_state(one.clone(), &mut caches)).into_data()));
        })
    }

    fn training<'a>(&'a self, network: Network) -> Box<dyn FnMut() + 'a> {
        let device = Device::default();
        let [channels, height, width] = self.image;
        let n = self.shape[0];
        let images = Tensor::<4>::random([n, channels, height, width], Distribution::Default, &device);
        let labels: Vec<i32> = (0..n).map(|i| (i % 10) as i32).collect();
        let labels = Tensor::<2, Int>::from_data(TensorData::new(labels, [n, 1]), &device);
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let mut network = Some(network);
        Box::new(move || {
            let now = network.take().unwrap();
            let loss = -log_softmax(now.classify(images.clone()), 1).gather(1, labels.clone()).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &now);
            network = Some(optimizer.step(1e-3, now, grads));
        })
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
