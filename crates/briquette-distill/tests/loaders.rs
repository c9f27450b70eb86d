//! Training on batches from burn's loaders, which set the order.

use crate::points::*;
use briquette_core::{ErrorKind, Result};
use briquette_distill::{
    BatchLoader, Blend, Checkpoints, Distiller, Divergence, Loss, Settings, TrainingBatch, TrainingData,
    TrainingOutcome, Watch, training_batches,
};
use briquette_nn::Compression;
use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::tensor::{Device, Int, Tensor};

/// Points in a user's own batch type.
#[derive(Debug, Clone)]
struct TheirBatch {
    x: Tensor<2>,
    y: Tensor<1, Int>,
}

struct TheirBatcher;

impl Batcher<usize, TheirBatch> for TheirBatcher {
    fn batch(&self, rows: Vec<usize>, device: &Device) -> TheirBatch {
        let batch = Points(64).batch(&rows, device).unwrap();
        TheirBatch { x: batch.input, y: batch.labels.unwrap() }
    }
}

fn loader(n: usize) -> BatchLoader<Tensor<2>> {
    loader_of(InMemDataset::new((0..n).collect::<Vec<usize>>()))
}

fn loader_of(rows: impl Dataset<usize> + 'static) -> BatchLoader<Tensor<2>> {
    let builder = DataLoaderBuilder::new(TheirBatcher).batch_size(10).shuffle(7).set_device(Device::flex());
    training_batches(builder.build(rows), |batch: TheirBatch| TrainingBatch::new(batch.x).with_labels(batch.y))
}

/// Trains three epochs of seven steps on a loader.
fn run_loader(
    batches: &BatchLoader<Tensor<2>>,
    checkpoints: &Checkpoints,
    watch: &mut dyn Watch<Net>,
) -> Result<TrainingOutcome<Net>> {
    let teacher = teacher();
    let terms = vec![Loss::Logits(Divergence::Kl, 2.0).times(1.0), Loss::Labels(0.0).times(0.1)];
    let settings = Settings { blend: Blend::new(terms)?, ..settings(3) };
    let sample = Points(64).batch(&[0, 1], &Device::flex())?;
    let (distiller, model) = Distiller::new(student(), Compression::new(), settings, Some(&teacher), &sample, 21)?;
    distiller.run_loader(model, Some(&teacher), batches, checkpoints, watch)
}

#[test]
fn a_loader_training_resumes_from_the_end_of_an_epoch() {
    let expected = run_loader(&loader(64), &Checkpoints::in_memory(), &mut ()).unwrap();
    assert_eq!(steps(&expected).len(), 21);
    let of = |epoch: usize| steps(&expected)[7 * epoch..7 * (epoch + 1)].iter().map(|step| step.terms[0]).sum::<f64>();
    assert!(of(2) < 0.9 * of(0), "{} and {}", of(0), of(2));
    for (at, resumed_at) in [(3, 0), (7, 0), (9, 7), (20, 14), (21, 14)] {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(directory.path()).unwrap();
        run_loader(&loader(64), &checkpoints, &mut StopAfter(at)).unwrap_err();
        let finished = run_loader(&loader(64), &checkpoints, &mut ()).unwrap();
        assert_eq!(finished.resumed_at, resumed_at, "stopped at {at}");
        assert_eq!(losses(&finished), losses(&expected), "stopped at {at}");
        assert_eq!(weights(&finished.student), weights(&expected.student));
    }
}

/// Rows, one of which cannot be read.
struct Unreadable;

impl Dataset<usize> for Unreadable {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if index == 33 { Err(DatasetError::new(std::io::Error::other("the disk is gone"))) } else { Ok(index) }
    }

    fn len(&self) -> usize {
        64
    }
}

#[test]
fn broken_loaders_and_checkpoints_within_an_epoch_are_refused() {
    let message = |batches, checkpoints: &Checkpoints| {
        let error = run_loader(&batches, checkpoints, &mut ()).unwrap_err();
        (error.kind, error.to_string())
    };
    let memory = Checkpoints::in_memory();
    let (kind, text) = message(loader_of(Unreadable), &memory);
    assert!(
        kind == ErrorKind::Input && text.contains("epoch 1, batch ") && text.contains("the disk is gone"),
        "{text}"
    );
    let (kind, text) = message(loader(0), &memory);
    assert!(kind == ErrorKind::Input && text.contains("no batches"), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(directory.path()).unwrap();
    run(settings(3), &checkpoints, &mut StopAfter(3)).unwrap_err();
    let (kind, text) = message(loader(64), &checkpoints);
    assert!(kind == ErrorKind::Config && text.contains("in the middle of an epoch"), "{text}");
}
