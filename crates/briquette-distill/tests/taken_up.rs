//! Tests of stopped trainings and damaged checkpoints.

use crate::points::*;
use briquette_core::{Error, ErrorKind, Result};
use briquette_distill::history::{EpochRecord, HistoryRecord, StepRecord};
use briquette_distill::{Checkpoints, Goal, Settings, TrainingOutcome, Watch};
use briquette_nn::Compression;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The point at which a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stop {
    Never,
    /// After this step, when its checkpoint may exist.
    Step(usize),
    /// Before this epoch is evaluated.
    Evaluation(usize),
    /// After this epoch's line is written.
    Epoch(usize),
}

struct Stopped {
    at: Stop,
    n_evaluated: usize,
}

impl Watch<Net> for Stopped {
    fn evaluate(&mut self, student: &Net) -> Result<BTreeMap<String, f64>> {
        self.n_evaluated += 1;
        match self.at {
            Stop::Evaluation(n) if n == self.n_evaluated => Err(Error::interrupted(15)),
            _ => StopAfter(0).evaluate(student),
        }
    }

    fn stepped(&mut self, record: &StepRecord) -> Result<()> {
        if self.at == Stop::Step(record.step) { Err(Error::interrupted(15)) } else { Ok(()) }
    }

    fn epoch(&mut self, record: &EpochRecord) -> Result<()> {
        if self.at == Stop::Epoch(record.epoch) { Err(Error::interrupted(15)) } else { Ok(()) }
    }
}

/// Trains three epochs of four steps.
fn run(save_every: usize, at: Stop, directory: &Path) -> Result<TrainingOutcome<Net>> {
    let goal = Some(Goal { metric: "apart".into(), is_more_better: false });
    let settings = Settings { save_every, goal, ..settings(3) };
    train(student(), Compression::new(), settings, directory, &mut Stopped { at, n_evaluated: 0 })
}

/// Returns the history without times.
fn timeless(finished: &TrainingOutcome<Net>) -> Vec<HistoryRecord> {
    let line = |line: &HistoryRecord| match line {
        HistoryRecord::Step(record) => HistoryRecord::Step(StepRecord { seconds: 0.0, ..record.clone() }),
        HistoryRecord::Epoch(record) => HistoryRecord::Epoch(record.clone()),
    };
    finished.history.iter().map(line).collect()
}

#[test]
fn a_resumed_run_logs_the_same_history() {
    let whole = tempfile::tempdir().unwrap();
    let expected = run(100, Stop::Never, whole.path()).unwrap();
    let n_epochs = timeless(&expected).iter().filter(|line| matches!(line, HistoryRecord::Epoch(_))).count();
    assert_eq!(n_epochs, 3);
    let stops = [
        Stop::Step(2),
        Stop::Step(4),
        Stop::Step(7),
        Stop::Evaluation(1),
        Stop::Evaluation(2),
        Stop::Epoch(1),
        Stop::Epoch(2),
        Stop::Epoch(3),
    ];
    // Checkpoints in the middle of an epoch, at its last step, and at each step.
    for save_every in [3, 4, 1] {
        for at in stops {
            let directory = tempfile::tempdir().unwrap();
            assert_eq!(run(save_every, at, directory.path()).unwrap_err().kind, ErrorKind::Interrupted(15));
            let finished = run(save_every, Stop::Never, directory.path()).unwrap();
            assert_eq!(timeless(&finished), timeless(&expected), "saved every {save_every}, stopped at {at:?}");
            assert_eq!(weights(&finished.student), weights(&expected.student));
            assert_eq!(finished.best, expected.best);
        }
    }
}

/// The update of step 8 overflows weights, although its loss and its gradient are finite.
#[test]
fn weights_that_are_not_finite_are_never_stored_and_the_last_checkpoint_stays() {
    for (save_every, last) in [(100, 4), (3, 6), (8, 4)] {
        let directory = tempfile::tempdir().unwrap();
        let schedule = StepLrSchedulerConfig::new(2e-2, 7).with_gamma(1e42).init().unwrap();
        let goal = Some(Goal { metric: "apart".into(), is_more_better: false });
        let broken = Settings { save_every, goal, ..settings(3) }.with_schedule(schedule);
        let mut watch = Stopped { at: Stop::Never, n_evaluated: 0 };
        let error = train(student(), Compression::new(), broken, directory.path(), &mut watch).unwrap_err();
        assert_eq!(error.exit_code(), 6, "{error}");
        let expected = ["inner.weight: found ", " after training step 8; lower the learning rate"];
        assert!(expected.iter().all(|part| error.message.contains(part)), "{error}");
        assert_eq!(watch.n_evaluated, 1, "such weights are not evaluated");
        assert_eq!(Checkpoints::at(directory.path()).unwrap().state().unwrap().unwrap().step, last);
        let finished = run(save_every, Stop::Never, directory.path()).unwrap();
        assert_eq!(finished.resumed_at, last);
        assert!(weights(&finished.student).iter().all(|weight| weight.is_finite()));
    }
}

/// Returns the files of a stopped run: of its steps, its best student and `last.json`.
fn stopped() -> (tempfile::TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    run(3, Stop::Step(7), directory.path()).unwrap_err();
    let entries = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let counts = |path: &PathBuf| !path.ends_with("metrics.jsonl");
    let mut files: Vec<PathBuf> = entries.filter(counts).collect();
    files.sort();
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["best-1.bpk", "last.json", "step-6.model.bpk", "step-6.optimizer.bpk"]);
    (directory, files)
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_refused_or_harmless() {
    let whole = tempfile::tempdir().unwrap();
    let expected = weights(&run(3, Stop::Never, whole.path()).unwrap().student);
    let (directory, files) = stopped();
    let kept: Vec<(PathBuf, Vec<u8>)> = ["metrics.jsonl"]
        .iter()
        .map(|name| directory.path().join(name))
        .chain(files.clone())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    let mut n_refused = 0;
    for path in &files {
        let bytes = std::fs::read(path).unwrap();
        for part in 0..16 {
            let mut flipped = bytes.clone();
            let place = bytes.len() * part / 16;
            flipped[place] ^= 1 << (part % 8);
            std::fs::write(path, flipped).unwrap();
            match run(3, Stop::Never, directory.path()) {
                // A file that is no longer needed is not read.
                Ok(finished) => assert_eq!(weights(&finished.student), expected, "{} at {place}", path.display()),
                Err(error) => {
                    let message = error.to_string();
                    assert!(Checkpoints::is_damage(&error) && error.exit_code() == 4, "{message}");
                    assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
                    assert!(
                        message.ends_with("clear the checkpoints to start anew") && message.lines().count() == 1,
                        "{message}"
                    );
                    n_refused += 1;
                }
            }
            // If the run resumed, it reached its end.
            kept.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        }
    }
    assert!(n_refused >= 16 * 2, "{n_refused}");
}

#[test]
fn truncated_or_missing_checkpoints_are_damage_until_cleared() {
    let whole = tempfile::tempdir().unwrap();
    let expected = weights(&run(3, Stop::Never, whole.path()).unwrap().student);
    for which in 1..4 {
        for cut in [0, 1, 2] {
            let (directory, files) = stopped();
            let bytes = std::fs::read(&files[which]).unwrap();
            match cut {
                2 if which > 1 => std::fs::remove_file(&files[which]).unwrap(),
                cut => std::fs::write(&files[which], &bytes[..bytes.len() * cut / 3]).unwrap(),
            }
            let error = run(3, Stop::Never, directory.path()).unwrap_err();
            assert!(Checkpoints::is_damage(&error), "{error}");
            Checkpoints::at(directory.path()).unwrap().clear().unwrap();
            let finished = run(3, Stop::Never, directory.path()).unwrap();
            assert_eq!((finished.resumed_at, weights(&finished.student)), (0, expected.clone()));
        }
    }
}
