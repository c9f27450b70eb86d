//! A small network that learns to follow another on synthetic points.
#![allow(dead_code)]

use briquette_core::{Error, Result};
use briquette_distill::history::{HistoryRecord, StepRecord};
use briquette_distill::{
    Blend, Checkpoints, Distiller, Divergence, Frozen, Loss, Outputs, Settings, Targets, Teacher, Term, Traced,
    TrainingBatch, TrainingData, TrainingOutcome, Wanted, Watch, n_steps,
};
use briquette_nn::Compression;
use briquette_nn::layers::Linear;
use burn::module::{Module, Param};
use burn::tensor::activation::{gelu, log_softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) const INPUTS: usize = 6;

/// A network with an input, one hidden state and three classes.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) inner: Linear,
    pub(crate) outer: Linear,
}

impl Net {
    pub(crate) fn new(width: usize, seed: usize, device: &Device) -> Self {
        Self { inner: linear(INPUTS, width, seed, device), outer: linear(width, 3, seed + 1, device) }
    }
}

/// Returns a layer with weights from a seed, because all tests share the device's generator.
pub(crate) fn linear(from: usize, to: usize, seed: usize, device: &Device) -> Linear {
    let value = |at: usize| ((at * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    let data = |shape: Vec<usize>| TensorData::new((0..shape.iter().product()).map(value).collect::<Vec<_>>(), shape);
    let bias = Tensor::from_data(data(vec![to]), device);
    Linear {
        weight: Param::from_tensor(Tensor::from_data(data(vec![from, to]), device)),
        bias: Some(Param::from_tensor(bias)),
        down: None,
    }
}

impl Traced for Net {
    type Input = Tensor<2>;

    fn outputs(&self, input: &Tensor<2>, _wanted: Wanted) -> Outputs {
        let hidden = gelu(self.inner.forward(input.clone()));
        let logits = Some(self.outer.forward(hidden.clone()));
        Outputs { logits, hidden: vec![hidden.unsqueeze_dim(1)], ..Outputs::default() }
    }
}

/// Points and labels that depend on their indices.
pub(crate) struct Points(pub(crate) usize);

impl TrainingData for Points {
    type Input = Tensor<2>;

    fn len(&self) -> usize {
        self.0
    }

    fn batch(&self, rows: &[usize], device: &Device) -> Result<TrainingBatch<Tensor<2>>> {
        let value = |row: usize, at: usize| ((row * 37 + at * 101) % 64) as f32 / 32.0 - 1.0;
        let values = rows.iter().flat_map(|&row| (0..INPUTS).map(move |at| value(row, at)));
        let input = TensorData::new(values.collect::<Vec<_>>(), [rows.len(), INPUTS]);
        let labels: Vec<i64> = rows.iter().map(|&row| (row % 3) as i64).collect();
        let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows.len()]), device);
        Ok(TrainingBatch { rows: rows.to_vec(), input: Tensor::from_data(input, device), labels: Some(labels) })
    }
}

pub(crate) fn blend(loss: Loss) -> Blend {
    Blend::new(vec![Term { loss, weight: 1.0 }]).unwrap()
}

pub(crate) fn settings(epochs: usize) -> Settings {
    let settings = Settings::new(blend(Loss::Logits(Divergence::Kl, 2.0)), epochs, 2e-2);
    Settings { batch_size: 16, at_once: 16, save_every: 3, ..settings }
}

pub(crate) fn teacher() -> Frozen<Net> {
    Frozen::new(&Net::new(12, 1, &Device::flex()))
}

pub(crate) fn student() -> Net {
    Net::new(5, 2, &Device::flex().autodiff())
}

/// Trains on 64 points, with checkpoints in a directory.
pub(crate) fn train(
    student: Net,
    rules: Compression,
    settings: Settings,
    directory: &Path,
    watch: &mut dyn Watch<Net>,
) -> Result<TrainingOutcome<Net>> {
    let (teacher, data) = (teacher(), Points(64));
    let sample = data.batch(&[0, 1], &Device::flex())?;
    let n = n_steps(data.len(), settings.batch_size, settings.epochs);
    let (distiller, model) = Distiller::new(student, rules, settings, Some(&teacher), &sample, n)?;
    distiller.run(model, Some(&teacher), &data, &Checkpoints::at(directory)?, watch)
}

pub(crate) fn weights(net: &Net) -> Vec<f32> {
    let of = |linear: &Linear| linear.weight.val().into_data().try_into_vec_as::<f32>().unwrap();
    [of(&net.inner), of(&net.outer)].concat()
}

pub(crate) fn losses(finished: &TrainingOutcome<Net>) -> Vec<f64> {
    let step = |line: &HistoryRecord| match line {
        HistoryRecord::Step(record) => Some(record.loss),
        HistoryRecord::Epoch(_) => None,
    };
    finished.history.iter().filter_map(step).collect()
}

/// Returns the mean squared difference of logits.
pub(crate) fn apart(student: &Outputs, targets: Targets) -> Result<Tensor<1>> {
    Ok((student.need_logits()? - targets.need_teacher()?.need_logits()?).square().mean())
}

/// Trains on 64 points, without a directory.
pub(crate) fn in_memory(settings: Settings) -> Result<TrainingOutcome<Net>> {
    run(settings, &Checkpoints::in_memory(), &mut ())
}

pub(crate) fn run(
    settings: Settings,
    checkpoints: &Checkpoints,
    watch: &mut dyn Watch<Net>,
) -> Result<TrainingOutcome<Net>> {
    let (teacher, data) = (teacher(), Points(64));
    let sample = data.batch(&[0, 1], &Device::flex())?;
    let (distiller, model) = Distiller::new(student(), Compression::new(), settings, Some(&teacher), &sample, 1000)?;
    distiller.run(model, Some(&teacher), &data, checkpoints, watch)
}

pub(crate) fn steps<N>(finished: &TrainingOutcome<N>) -> Vec<&StepRecord> {
    let lines = finished.history.iter();
    lines
        .filter_map(|line| match line {
            HistoryRecord::Step(record) => Some(record),
            HistoryRecord::Epoch(_) => None,
        })
        .collect()
}

/// Stops after some steps like a kill, and measures the distance between student and teacher.
pub(crate) struct StopAfter(pub(crate) usize);

impl Watch<Net> for StopAfter {
    fn evaluate(&mut self, student: &Net) -> Result<BTreeMap<String, f64>> {
        let batch = Points(64).batch(&(0..64).collect::<Vec<_>>(), &Device::flex())?;
        let scores = |outputs: Outputs| log_softmax(outputs.logits.unwrap(), 1);
        let of_teacher = scores(teacher().outputs(&batch, Wanted::default())?);
        let apart = (scores(student.valid().outputs(&batch.input, Wanted::default())) - of_teacher).abs().mean();
        Ok(BTreeMap::from([("apart".to_string(), f64::from(apart.into_scalar::<f32>()))]))
    }

    fn stepped(&mut self, record: &StepRecord) -> Result<()> {
        if record.step == self.0 { Err(Error::interrupted(15)) } else { Ok(()) }
    }
}
