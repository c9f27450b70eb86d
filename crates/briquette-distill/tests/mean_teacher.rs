//! A student that follows its own average over time.

use crate::points::*;
use briquette_core::Result;
use briquette_distill::{Blend, Checkpoints, Distiller, Loss, Settings, Teacher, TrainingData, TrainingOutcome, Watch};
use briquette_nn::{Compression, Prune};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

const DECAY: f64 = 0.6;

fn averaging() -> Settings {
    // The initial average gives the same logits as the student: labels make it move.
    let terms = vec![Loss::Labels(0.0).times(1.0), Loss::custom("apart", apart).times(0.5)];
    Settings { blend: Blend::new(terms).unwrap(), mean_teacher: Some(DECAY), ..settings(3) }
}

fn run_averaging(checkpoints: &Checkpoints, watch: &mut dyn Watch<Net>) -> Result<TrainingOutcome<Net>> {
    let data = Points(64);
    let sample = data.batch(&[0, 1], &Device::flex())?;
    let rules = Compression::new().prune(Prune::new("inner.weight", 0.5)?);
    let (distiller, model) = Distiller::new(student(), rules, averaging(), None, &sample, 12)?;
    distiller.run(model, None, &data, checkpoints, watch)
}

#[test]
fn the_average_of_the_student_is_its_teacher() {
    let data = Points(64);
    let sample = data.batch(&[0, 1], &Device::flex()).unwrap();
    let rules = Compression::new().prune(Prune::new("inner.weight", 0.5).unwrap());
    let (mut distiller, mut model) = Distiller::new(student(), rules, averaging(), None, &sample, 12).unwrap();
    let mut expected = weights(&student());
    let rows: Vec<usize> = (0..16).collect();
    for step in 1..=6 {
        let average = weights(model.average.as_ref().unwrap());
        let record;
        (model, record) = distiller.step(model, None, &data, &rows).unwrap();
        assert!(step > 1 || record.terms[1] > 0.0, "the mask makes the student differ from its average");
        let keep = DECAY.min(1.0 - 1.0 / (step as f64 + 1.0)) as f32;
        let effective = weights(&model.student.valid().materialize());
        expected = expected.iter().zip(effective).map(|(old, new)| keep * old + (1.0 - keep) * new).collect();
        let found = weights(model.average.as_ref().unwrap());
        let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-5 && found != average, "step {step}: {most}");
    }
}

#[test]
fn a_mean_teacher_training_resumes() {
    let expected = run_averaging(&Checkpoints::in_memory(), &mut ()).unwrap();
    let average = weights(expected.average.as_ref().unwrap());
    assert_ne!(average, weights(&expected.student));
    for (at, resumed_at) in [(3, 3), (5, 4), (8, 6)] {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(directory.path()).unwrap();
        run_averaging(&checkpoints, &mut StopAfter(at)).unwrap_err();
        let finished = run_averaging(&checkpoints, &mut ()).unwrap();
        assert_eq!(finished.resumed_at, resumed_at, "saved every 3 steps and after each epoch of 4");
        assert_eq!(losses(&finished), losses(&expected), "stopped at {at}");
        assert_eq!(weights(&finished.student), weights(&expected.student));
        assert_eq!(weights(&finished.average.unwrap()), average);
    }
}

#[test]
fn two_teachers_and_invalid_decays_are_refused() {
    let (teacher, sample) = (teacher(), Points(4).batch(&[0, 1], &Device::flex()).unwrap());
    let message = |settings, teacher: Option<&dyn Teacher<Tensor<2>>>| {
        Distiller::new(student(), Compression::new(), settings, teacher, &sample, 4).map(drop).unwrap_err().to_string()
    };
    assert!(message(averaging(), Some(&teacher)).contains("mean_teacher: the student's average is the teacher"));
    let one = Settings { mean_teacher: Some(1.0), ..averaging() };
    assert!(message(one, None).contains("mean_teacher: found 1, expected a decay"));
}
