//! Trains a user's module to follow a module of another type under burn's own `Learner`.
//!
//! Neither the modules nor their data depend on Briquette; all calls of Briquette are between two marker lines.
//!
//!     cargo run --release -p briquette-distill --example foreign
#![allow(clippy::print_stdout)]

use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::{Learner, SupervisedTraining};
use std::sync::Arc;

/// The teacher.
#[derive(Module, Debug)]
pub(crate) struct Wide {
    layers: [Linear; 2],
}

impl Wide {
    pub(crate) fn new(device: &Device) -> Self {
        Self { layers: [(2, 64), (64, 3)].map(|(from, to)| LinearConfig::new(from, to).init(device)) }
    }

    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers[1].forward(gelu(self.layers[0].forward(x * 3))) * 4
    }
}

/// The student.
#[derive(Module, Debug)]
pub(crate) struct Slim {
    inner: Linear,
    outer: Linear,
}

impl Slim {
    pub(crate) fn new(device: &Device) -> Self {
        Self { inner: LinearConfig::new(2, 12).init(device), outer: LinearConfig::new(12, 3).init(device) }
    }

    pub(crate) fn scores(&self, x: Tensor<2>) -> Tensor<2> {
        self.outer.forward(self.inner.forward(x).tanh())
    }
}

/// Points of a square, each labelled with its third of the plane.
#[derive(Debug, Clone)]
pub(crate) struct Points {
    pub(crate) x: Tensor<2>,
    pub(crate) y: Tensor<1, Int>,
}

struct Square;

impl Batcher<usize, Points> for Square {
    fn batch(&self, rows: Vec<usize>, device: &Device) -> Points {
        let place = |row: usize| [row % 32, row / 32].map(|at| at as f32 / 15.5 - 1.0);
        let third = |[x, y]: [f32; 2]| ((y.atan2(x) / std::f32::consts::TAU + 0.5) * 2.999) as i64;
        let x: Vec<f32> = rows.iter().flat_map(|&row| place(row)).collect();
        let y: Vec<i64> = rows.iter().map(|&row| third(place(row))).collect();
        let n = rows.len();
        Points {
            x: Tensor::from_data(TensorData::new(x, [n, 2]), device),
            y: Tensor::from_data(TensorData::new(y, [n]), device),
        }
    }
}

pub(crate) fn loader(seed: u64) -> Arc<dyn DataLoader<Points>> {
    let rows = InMemDataset::new((0..1024).collect::<Vec<usize>>());
    DataLoaderBuilder::new(Square).batch_size(64).shuffle(seed).build(rows)
}

// ---- briquette ----
use briquette_distill::{Blend, Distilling, Divergence, Foreign, Loss, Outputs, SharedTeacher};
use briquette_distill::{TrainingBatch, first_batch, training_batches};
use briquette_nn::Quiet;

pub(crate) fn distill(student: Slim, teacher: Wide) -> briquette_core::Result<Slim> {
    let teacher = Foreign::new(teacher, |net: &Wide, x: &Tensor<2>| Outputs::of_logits(net.forward(x.clone())));
    let student = Foreign::new(student, |net: &Slim, x: &Tensor<2>| Outputs::of_logits(net.scores(x.clone())));
    let batches = |loader| training_batches(loader, |own: Points| TrainingBatch::new(own.x).with_labels(own.y));
    let (train, valid) = (batches(loader(0)), batches(loader(1)));
    let blend = Blend::new(vec![Loss::Logits(Divergence::Kl, 2.0).times(1.0), Loss::Labels(0.0).times(0.01)])?;
    let model = Distilling::new(student, Some(SharedTeacher::of(&teacher)), blend, &first_batch(&valid)?)?;
    let training = SupervisedTraining::new(std::env::temp_dir().join("briquette-foreign"), train, valid);
    let learner = Learner::new(model, AdamConfig::new().init(), 2e-2);
    Ok(training.renderer(Box::new(Quiet)).num_epochs(8).launch(learner).model.student.network)
}
// ---- user code ----

/// Returns the share of points that both networks put into the same class.
pub(crate) fn agreement(student: &Slim, teacher: &Wide) -> f32 {
    let x = Square.batch((0..1024).collect(), &Device::default()).x;
    let [a, b] = [student.valid().scores(x.clone()), teacher.valid().forward(x)].map(|scores| scores.argmax(1));
    a.equal(b).float().mean().into_scalar()
}

#[allow(dead_code, reason = "a test takes the rest of this file")]
fn main() -> briquette_core::Result<()> {
    let device = Device::default();
    device.seed(3);
    let (student, teacher) = (Slim::new(&device.clone().autodiff()), Wide::new(&device));
    let before = agreement(&student, &teacher);
    let after = agreement(&distill(student, teacher.clone())?, &teacher);
    println!("agreement with the teacher: {:.1} % of the points, before {:.1} %", 100.0 * after, 100.0 * before);
    Ok(())
}
