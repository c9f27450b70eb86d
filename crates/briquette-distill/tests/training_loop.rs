//! Tests of the training loop: learning, masks and grids, resuming and refused settings.

use crate::points::*;
use briquette_core::{Error, ErrorKind, Result};
use briquette_distill::checkpoints::TrainingState;
use briquette_distill::history::{EpochRecord, HistoryRecord};
use briquette_distill::{
    Cached, Checkpoints, Distance, Distiller, Goal, LayerMap, Loss, Optimizer, Outputs, Settings, Teacher,
    TrainingBatch, TrainingData, Wanted, Watch,
};
use briquette_nn::{Compression, Patterns, Prune, Quantize, sparsity};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn a_student_learns_to_follow_its_teacher() {
    let directory = tempfile::tempdir().unwrap();
    let finished = train(student(), Compression::new(), settings(30), directory.path(), &mut ()).unwrap();
    let losses = losses(&finished);
    assert_eq!(losses.len(), 120);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[116..]) < 0.1 * mean(&losses[..4]), "{losses:?}");
    assert!(finished.student.inner.weight.is_require_grad());
}

#[test]
fn a_resumed_run_gives_the_same_student() {
    let whole = tempfile::tempdir().unwrap();
    let rules = || Compression::new().prune(Prune::new("inner.weight", 0.4).unwrap());
    let expected = train(student(), rules(), settings(3), whole.path(), &mut StopAfter(0)).unwrap();
    for at in [1, 3, 4, 7, 12] {
        let directory = tempfile::tempdir().unwrap();
        let stopped = train(student(), rules(), settings(3), directory.path(), &mut StopAfter(at)).unwrap_err();
        assert_eq!(stopped.kind, ErrorKind::Interrupted(15));
        // With another initial student, a resumed run still gives the same result: the checkpoint counts.
        let other = if at < 3 { student() } else { Net::new(5, 99, &Device::flex().autodiff()) };
        let finished = train(other, rules(), settings(3), directory.path(), &mut StopAfter(0)).unwrap();
        assert_eq!(finished.resumed_at, at / 3 * 3, "saved every 3 steps");
        assert_eq!(weights(&finished.student), weights(&expected.student), "stopped at {at}");
        assert_eq!(losses(&finished), losses(&expected), "stopped at {at}");
    }
}

#[test]
fn micro_batches_make_the_same_step_as_a_whole_batch() {
    let of = |at_once: usize| {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings { at_once, ..settings(2) };
        weights(&train(student(), Compression::new(), settings, directory.path(), &mut ()).unwrap().student)
    };
    let whole = of(16);
    for at_once in [1, 5, 8] {
        let apart = of(at_once).iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-3, "{at_once}: {apart}");
    }
}

#[test]
fn masks_and_grids_stay_in_place_during_training() {
    let directory = tempfile::tempdir().unwrap();
    let rules = Compression::new()
        .prune(Prune::new("inner.weight", 0.5).unwrap())
        .quantize(Quantize::new("outer.weight", "int4").unwrap());
    let finished = train(student(), rules, settings(5), directory.path(), &mut ()).unwrap();
    assert_eq!(sparsity(&finished.student).unwrap()["inner.weight"].n_zeros, 15);
    let (rounded, base) = (finished.student.outer.weight.val(), finished.student.outer.weight.base());
    assert!(f64::from((rounded - base).abs().max().into_scalar::<f32>()) > 1e-4);
}

#[test]
fn frozen_parameters_do_not_change() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings { frozen: Patterns::new(["inner.*"]).unwrap(), ..settings(2) };
    let (before, finished) =
        (student(), train(student(), Compression::new(), settings.clone(), directory.path(), &mut ()).unwrap());
    assert_eq!(weights(&before)[..30], weights(&finished.student)[..30]);
    assert_ne!(weights(&before)[30..], weights(&finished.student)[30..]);
    let settings = Settings { frozen: Patterns::new(["inmer.*"]).unwrap(), ..settings };
    let error = train(student(), Compression::new(), settings, directory.path(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("freeze: pattern \"inmer.*\" matches no parameter"), "{error}");
}

#[test]
fn hidden_states_are_projected_and_gradients_clipped() {
    let directory = tempfile::tempdir().unwrap();
    let hidden = blend(Loss::Hidden(Distance::Mse, LayerMap::Every));
    let optimizer = Optimizer::Sgd { momentum: 0.9, decay: 0.0 };
    let settings = Settings { blend: hidden, optimizer, clip: Some(0.05), learning_rate: 0.5, ..settings(20) };
    let finished = train(student(), Compression::new(), settings, directory.path(), &mut ()).unwrap();
    let losses = losses(&finished);
    assert!(losses[79] < 0.7 * losses[0], "{losses:?}");
}

/// Rates each epoch worse than the one before.
struct Falling(f64);

impl Watch<Net> for Falling {
    fn evaluate(&mut self, student: &Net) -> Result<BTreeMap<String, f64>> {
        self.0 -= 1.0;
        let mut found = StopAfter(0).evaluate(student)?;
        found.insert("falling".into(), self.0);
        Ok(found)
    }
}

#[test]
fn the_best_epoch_is_kept_and_patience_stops_training() {
    let directory = tempfile::tempdir().unwrap();
    let goal = Some(Goal { metric: "falling".into(), is_more_better: true });
    let settings = Settings { goal, patience: Some(2), ..settings(30) };
    let watch = &mut Falling(0.0);
    let finished = train(student(), Compression::new(), settings.clone(), directory.path(), watch).unwrap();
    assert_eq!(finished.best.unwrap().epoch, 1);
    let epochs: Vec<&EpochRecord> = finished
        .history
        .iter()
        .filter_map(|line| match line {
            HistoryRecord::Epoch(record) => Some(record),
            HistoryRecord::Step(_) => None,
        })
        .collect();
    assert_eq!(epochs.len(), 3);
    let found = StopAfter(0).evaluate(&finished.student).unwrap()["apart"];
    assert!((found - epochs[0].metrics["apart"]).abs() < 1e-6);

    let goal = Some(Goal { metric: "acuracy".into(), is_more_better: true });
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings { goal, ..settings };
    let error = train(student(), Compression::new(), settings, directory.path(), &mut StopAfter(0)).unwrap_err();
    assert!(error.to_string().contains("\"acuracy\" is not measured here, only apart"), "{error}");
}

/// A teacher whose device has memory for only a few items.
struct Small(usize);

impl Teacher<Tensor<2>> for Small {
    fn outputs(&self, batch: &TrainingBatch<Tensor<2>>, wanted: Wanted) -> Result<Outputs> {
        if batch.rows.len() > self.0 {
            let full = std::io::Error::other("out of device memory allocating 1 bytes");
            return Err(Error::io("cannot run", Path::new("device"), full));
        }
        teacher().outputs(batch, wanted)
    }
}

#[test]
fn micro_batches_shrink_when_memory_runs_out() {
    let run = |most: usize| {
        let (teacher, data, directory) = (Small(most), Points(64), tempfile::tempdir().unwrap());
        let sample = data.batch(&[0], &Device::flex()).unwrap();
        let made = Distiller::new(student(), Compression::new(), settings(3), Some(&teacher), &sample, 12);
        let (distiller, model) = made.unwrap();
        let checkpoints = Checkpoints::at(directory.path()).unwrap();
        let finished = distiller.run(model, Some(&teacher), &data, &checkpoints, &mut ());
        (finished.map(|finished| losses(&finished)), checkpoints.state().unwrap())
    };
    let (whole, fewer) = (run(16), run(5));
    assert_eq!((whole.1.unwrap().at_once, fewer.1.unwrap().at_once), (16, 4));
    let last = |losses: Result<Vec<f64>>| losses.unwrap()[11];
    assert!((last(whole.0) - last(fewer.0)).abs() < 1e-3);
}

/// Points with one NaN.
struct Broken;

impl TrainingData for Broken {
    type Input = Tensor<2>;

    fn len(&self) -> usize {
        64
    }

    fn batch(&self, rows: &[usize], device: &Device) -> Result<TrainingBatch<Tensor<2>>> {
        let batch = Points(64).batch(rows, device)?;
        let factor = if rows.contains(&7) { f32::NAN } else { 1.0 };
        Ok(TrainingBatch { input: batch.input * factor, ..batch })
    }
}

#[test]
fn a_nan_loss_stops_after_the_last_good_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let (teacher, sample) = (teacher(), Points(64).batch(&[0], &Device::flex()).unwrap());
    let settings = Settings { save_every: 1, ..settings(3) };
    let made = Distiller::new(student(), Compression::new(), settings, Some(&teacher), &sample, 12).unwrap();
    let checkpoints = Checkpoints::at(directory.path()).unwrap();
    let error = made.0.run(made.1, Some(&teacher), &Broken, &checkpoints, &mut ()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    let message = error.to_string();
    assert!(message.starts_with("epoch 1, batch ") && message.contains("\"logits\" is NaN"), "{message}");
    let step = checkpoints.state().unwrap().map_or(0, |state: TrainingState| state.step);
    assert!(message.contains(&format!("at step {}", step + 1)), "{message}, saved at {step}");
}

#[test]
fn missing_data_missing_teachers_and_other_classes_are_refused() {
    let sample = || Points(4).batch(&[0, 1], &Device::flex()).unwrap();
    let rules = Compression::new;
    let message = |found: Result<()>| found.unwrap_err().to_string();
    let none = Distiller::new(student(), rules(), settings(1), None, &sample(), 1).map(drop);
    assert!(message(none).contains("there is no teacher"));

    let teacher = teacher();
    let (distiller, model) = Distiller::new(student(), rules(), settings(1), Some(&teacher), &sample(), 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(directory.path()).unwrap();
    let empty = distiller.run(model, Some(&teacher), &Points(0), &checkpoints, &mut ()).map(drop);
    assert!(message(empty).contains("the data is empty"));

    let mut two = Net::new(5, 3, &Device::flex().autodiff());
    two.outer = linear(5, 2, 4, &Device::flex().autodiff());
    let other = Distiller::new(two, rules(), settings(1), Some(&teacher), &sample(), 1).map(drop);
    assert!(message(other).contains("classes: the student has 2 and the teacher 3"));
}

#[test]
fn a_cached_teacher_gives_the_same_outputs() {
    let (teacher, data, directory) = (teacher(), Points(10), tempfile::tempdir().unwrap());
    let path = directory.path().join("teacher.safetensors");
    let scores = |teacher: &dyn Teacher<Tensor<2>>| -> Vec<f32> {
        let batch = data.batch(&[7, 2], &Device::flex()).unwrap();
        let logits = teacher.outputs(&batch, Wanted::default()).unwrap().logits.unwrap();
        log_softmax(logits, 1).into_data().try_into_vec_as().unwrap()
    };
    let expected = scores(&teacher);
    for k in [1, 2, 3] {
        Cached::of::<Tensor<2>>(&teacher, &data, k, 4, &Device::flex()).unwrap().write(&path).unwrap();
        let read = Cached::read(&path, 10, &Device::flex()).unwrap();
        let apart = scores(&read).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // With three classes, two logits represent all in f16; with one, the others share equal logits.
        assert!(if k == 1 { apart > 1e-3 } else { apart < 1e-3 }, "{k}: {apart}");
        let top =
            |scores: &[f32]| scores.chunks(3).map(|row| row.iter().copied().fold(-9.0, f32::max)).collect::<Vec<_>>();
        let apart = top(&scores(&read)).iter().zip(top(&expected)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-3, "{k}: the largest logits are kept, found a difference of {apart}");
    }
    let error = Cached::read(&path, 11, &Device::flex()).unwrap_err().to_string();
    assert!(error.contains("outputs for 10 items, expected 11"), "{error}");
    let bytes = std::fs::read(&path).unwrap();
    for place in 8 * 8..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[place / 8] ^= 1 << (place % 8);
        std::fs::write(&path, flipped).unwrap();
        // White space in the header, or the name of an unused entry, may change without an effect.
        if let Ok(found) = Cached::read(&path, 10, &Device::flex()) {
            assert_eq!(scores(&found), scores(&read_of(&bytes, directory.path())), "bit {place}");
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    let batch = data.batch(&[0], &Device::flex()).unwrap();
    let read = Cached::read(&path, 10, &Device::flex()).unwrap();
    let hidden = Teacher::<Tensor<2>>::outputs(&read, &batch, Wanted { hidden: true, ..Wanted::default() });
    assert!(hidden.unwrap_err().to_string().contains("are not cached"));
}

fn read_of(bytes: &[u8], directory: &Path) -> Cached {
    let path = directory.join("whole.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Cached::read(&path, 10, &Device::flex()).unwrap()
}
