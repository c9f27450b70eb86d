//! Tests burn's `SupervisedTraining` on one device and on two. It is a separate program because it changes
//! process-wide settings.
#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)]

use briquette_core::{ErrorKind, Result};
use briquette_distill::{
    Blend, Distilling, Divergence, Loss, Outputs, SharedTeacher, Term, Traced, TrainingBatch, Wanted,
};
use briquette_nn::layers::Linear;
use briquette_nn::{Compressing, Compression, Prune, sparsity};
use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::optim::AdamConfig;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::{ExecutionStrategy, Learner, MultiDeviceOptim, SupervisedTraining, TrainingStrategy};
use std::sync::Arc;

#[path = "../examples/foreign.rs"]
mod foreign;

const INPUTS: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layer: Linear,
}

impl Net {
    fn new(seed: usize, device: &Device) -> Self {
        let value = |at: usize| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
        let data = TensorData::new((0..INPUTS * 3).map(value).collect::<Vec<f32>>(), [INPUTS, 3]);
        Self { layer: Linear { weight: Param::from_tensor(Tensor::from_data(data, device)), bias: None, down: None } }
    }
}

impl Traced for Net {
    type Input = Tensor<2>;

    fn outputs(&self, input: &Tensor<2>, _wanted: Wanted) -> Outputs {
        Outputs { logits: Some(self.layer.forward(input.clone())), ..Outputs::default() }
    }
}

struct Points;

impl Batcher<usize, TrainingBatch<Tensor<2>>> for Points {
    fn batch(&self, rows: Vec<usize>, device: &Device) -> TrainingBatch<Tensor<2>> {
        let value = |row: usize, at: usize| ((row * 37 + at * 101) % 64) as f32 / 32.0 - 1.0;
        let values: Vec<f32> = rows.iter().flat_map(|&row| (0..INPUTS).map(move |at| value(row, at))).collect();
        let data = TensorData::new(values, [rows.len(), INPUTS]);
        TrainingBatch { input: Tensor::from_data(data, &device.clone().without_autodiff()), rows, labels: None }
    }
}

fn loader() -> Arc<dyn DataLoader<TrainingBatch<Tensor<2>>>> {
    DataLoaderBuilder::new(Points).batch_size(8).shuffle(1).build(InMemDataset::new((0..64).collect::<Vec<usize>>()))
}

/// Returns the mean distance of log probabilities between two networks.
fn apart(a: &Net, b: &Net) -> f32 {
    let batch = Points.batch((0..64).collect(), &Device::flex());
    let scores = |net: &Net| log_softmax(net.valid().outputs(&batch.input, Wanted::default()).logits.unwrap(), 1);
    (scores(a) - scores(b)).abs().mean().into_scalar()
}

fn train(n_devices: usize) -> Result<(f32, f32, usize)> {
    let (plain, device) = (Device::flex(), Device::flex().autodiff());
    let (teacher, student) = (Net::new(1, &plain), Net::new(2, &device));
    let before = apart(&student, &teacher);
    let blend = Blend::new(vec![Term { loss: Loss::Logits(Divergence::Kl, 2.0), weight: 1.0 }])?;
    let sample = Points.batch(vec![0, 1], &plain);
    let distilling = Distilling::new(student, Some(SharedTeacher::of(&teacher)), blend, &sample)?;
    let rules = Compression::new().prune(Prune::new("student.layer.weight", 0.25)?);
    let learner = Learner::new(Compressing::new(distilling, rules)?, AdamConfig::new().init(), 3e-2);
    let strategy = match n_devices {
        1 => ExecutionStrategy::SingleDevice(device),
        n => ExecutionStrategy::multi(vec![device; n], MultiDeviceOptim::OptimMainDevice),
    };
    let directory = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(directory.path(), loader(), loader())
        .with_training_strategy(TrainingStrategy::Default(strategy))
        .num_epochs(12);
    let student = training.launch(learner).model.model.student;
    let n_zeros = sparsity(&student)?["layer.weight"].n_zeros;
    Ok((before, apart(&student.materialize(), &teacher), n_zeros))
}

#[test]
fn a_student_follows_on_one_device_and_on_two() {
    for n_devices in [1, 2] {
        let (before, after, n_zeros) = train(n_devices).unwrap();
        assert!(after < 0.5 * before, "{n_devices}: {before} to {after}");
        assert_eq!(n_zeros, 3, "{n_devices}: the mask is kept");
    }
}

#[test]
fn two_foreign_modules_are_distilled_in_few_lines() {
    let device = Device::flex();
    device.seed(3);
    let (student, teacher) = (foreign::Slim::new(&device.clone().autodiff()), foreign::Wide::new(&device));
    let before = foreign::agreement(&student, &teacher);
    let after = foreign::agreement(&foreign::distill(student, teacher.clone()).unwrap(), &teacher);
    assert!(after > 0.9 && after > before + 0.1, "{before} to {after}");
    let lines = include_str!("../examples/foreign.rs").lines();
    let ours = lines.skip_while(|line| *line != "// ---- briquette ----").skip(1);
    let n_lines = ours.take_while(|line| *line != "// ---- user code ----").count();
    assert!((1..=25).contains(&n_lines), "{n_lines}");
}

#[test]
fn a_student_on_a_plain_device_is_refused_before_burn_panics() {
    let (plain, sample) = (Device::flex(), Points.batch(vec![0, 1], &Device::flex()));
    let blend = Blend::new(vec![Loss::Logits(Divergence::Kl, 2.0).times(1.0)]).unwrap();
    let teacher = SharedTeacher::of(&Net::new(1, &plain));
    let error = Distilling::new(Net::new(2, &plain), Some(teacher), blend, &sample).map(drop).unwrap_err();
    assert!(error.kind == ErrorKind::Config && error.to_string().contains("device.autodiff()"), "{error}");
}
