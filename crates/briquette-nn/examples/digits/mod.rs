//! Shared by the examples: the digits data, a small CNN and a plain training loop.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_nn::layers::{Conv2d, Conv2dConfig};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::Path;

pub const BATCH: usize = 64;
pub const LEARNING_RATE: f64 = 1e-3;
/// Sizes of the teacher: channels, channels, hidden units. About a million weights.
pub const TEACHER: [usize; 3] = [64, 128, 1536];
/// Sizes of the student: channels, channels, hidden units. About fifty thousand weights.
pub const STUDENT: [usize; 3] = [16, 32, 256];

#[derive(Module, Debug)]
pub struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
    conv3: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl Net {
    pub fn new([c1, c2, hidden]: [usize; 3], device: &Device) -> Self {
        let conv = |from, to| Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
        Self {
            conv1: conv(1, c1),
            conv2: conv(c1, c2),
            conv3: conv(c2, c2),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc1: LinearConfig::new(c2 * 4, hidden).init(device),
            fc2: LinearConfig::new(hidden, 10).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.conv2.forward(relu(self.conv1.forward(x)))));
        let x = self.pool.forward(relu(self.conv3.forward(x)));
        self.fc2.forward(relu(self.fc1.forward(x.flatten(1, 3))))
    }
}

/// Images and labels in host memory.
pub struct Data {
    pixels: Vec<f32>,
    labels: Vec<i64>,
}

impl Data {
    pub fn open(split: &str) -> Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/digits-data.safetensors");
        let file = Checkpoint::open(&path)?;
        let bytes = |name: String| -> Result<Vec<u8>> {
            let index = file.tensors().iter().position(|tensor| tensor.name == name);
            let index = index.ok_or_else(|| Error::input("is missing").at(&name))?;
            let mut bytes = vec![0; file.tensors()[index].n_bytes()];
            file.read(index, 0, &mut bytes)?;
            Ok(bytes)
        };
        let pixels = bytes(format!("{split}_x"))?.into_iter().map(|pixel| f32::from(pixel) / 16.0).collect();
        Ok(Self { pixels, labels: bytes(format!("{split}_y"))?.into_iter().map(i64::from).collect() })
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn batch(&self, rows: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let pixels: Vec<f32> = rows.iter().flat_map(|&row| &self.pixels[64 * row..64 * (row + 1)]).copied().collect();
        let labels: Vec<i64> = rows.iter().map(|&row| self.labels[row]).collect();
        let images = Tensor::from_data(TensorData::new(pixels, [rows.len(), 1, 8, 8]), device);
        (images, Tensor::from_data(TensorData::new(labels, [rows.len()]), device))
    }
}

/// Returns the percentage of correctly classified images.
pub fn accuracy(model: &Net, data: &Data) -> f64 {
    let model = model.valid();
    let device = model.devices().remove(0).without_autodiff();
    let (images, labels) = data.batch(&(0..data.len()).collect::<Vec<_>>(), &device);
    let right = model.forward(images).argmax(1).squeeze_dim::<1>(1).equal(labels).int().sum();
    100.0 * right.into_scalar::<i64>() as f64 / data.len() as f64
}

/// Returns a random permutation of `0..n`: Fisher–Yates with splitmix64.
pub fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut rows: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        rows.swap(i, ((z ^ (z >> 31)) % (i as u64 + 1)) as usize);
    }
    rows
}

pub fn adam() -> ModuleOptimizer {
    AdamConfig::new().with_epsilon(1e-8).init()
}

/// Runs one training step: forward, backward, optimizer.
pub fn step(model: Net, optimizer: &mut ModuleOptimizer, data: &Data, rows: &[usize], rate: f64) -> Net {
    let device = model.devices().remove(0);
    let (images, labels) = data.batch(rows, &device);
    let loss = CrossEntropyLossConfig::new().init(&device).forward(model.forward(images), labels);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(rate, model, grads)
}

/// Maps the finished share of training to a learning rate.
pub type Rate = fn(f64) -> f64;
/// Constant learning rate of Adam for training from scratch.
pub const STEADY: Rate = |_| LEARNING_RATE;
/// Falling learning rate for a few epochs of fine-tuning: large at first, then falling to 0.
pub const FALLING: Rate = |done| 3e-3 * (1.0 - done);

/// Trains for some epochs and calls `after` with the model and the step number after each step.
pub fn train(
    mut model: Net,
    data: &Data,
    epochs: usize,
    seed: u64,
    rate: Rate,
    mut after: impl FnMut(Net, usize) -> Result<Net>,
) -> Result<Net> {
    let (mut optimizer, mut t) = (adam(), 0);
    let n_steps = epochs * data.len().div_ceil(BATCH);
    for epoch in 0..epochs {
        for rows in shuffled(data.len(), seed * 1000 + epoch as u64).chunks(BATCH) {
            model = step(model, &mut optimizer, data, rows, rate(t as f64 / n_steps as f64));
            t += 1;
            model = after(model, t)?;
        }
    }
    Ok(model)
}

/// Like [`train`], without a callback.
pub fn train_plain(model: Net, data: &Data, epochs: usize, seed: u64, rate: Rate) -> Result<Net> {
    train(model, data, epochs, seed, rate, |model, _| Ok(model))
}

/// Returns the seeds to run: the first argument is their number (default 1), the second the first seed (default
/// 0).
pub fn seeds() -> std::ops::Range<u64> {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let first = argument(2).unwrap_or(0);
    first..first + argument(1).unwrap_or(1)
}

/// Returns a seeded device.
pub fn device(seed: u64) -> Device {
    let device = Device::default().autodiff();
    device.seed(seed);
    device
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
