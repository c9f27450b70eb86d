//! The contents of `last.json`.

use briquette_core::{Error, Hash128, Result};
use briquette_formats::json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The key of the hash of all other keys.
const SUM: &str = "sum";

/// The best student so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its epoch, from 1.
    pub epoch: usize,
    /// Its metric.
    pub value: f64,
}

/// The progress of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingState {
    /// The current epoch, from 0.
    pub epoch: usize,
    /// The number of completed steps in the epoch.
    pub step_of_epoch: usize,
    /// The sum of the losses of these steps.
    pub loss_of_epoch: f64,
    /// The total number of completed steps.
    pub step: usize,
    /// The number of items in memory at once.
    pub at_once: usize,
    /// The loss scaling, as JSON.
    pub scaler: Option<briquette_nn::LossScaler>,
    /// The best student so far.
    pub best: Option<Best>,
    /// Whether training is finished.
    pub is_done: bool,
    /// The files of the checkpoint, each with the hash of its bytes.
    pub files: BTreeMap<String, Hash128>,
}

impl TrainingState {
    /// Returns the state before the first step.
    pub(crate) fn at_start(at_once: usize, scaler: Option<briquette_nn::LossScaler>) -> Self {
        Self {
            epoch: 0,
            step_of_epoch: 0,
            loss_of_epoch: 0.0,
            step: 0,
            at_once,
            scaler,
            best: None,
            is_done: false,
            files: BTreeMap::new(),
        }
    }

    /// Counts a completed step of the epoch.
    pub(crate) fn count(&mut self, step: usize, loss: f64) {
        (self.step, self.step_of_epoch) = (step, self.step_of_epoch + 1);
        self.loss_of_epoch += loss;
    }

    /// Returns the mean loss of the epoch so far; 0 before its first step.
    pub(crate) fn mean_loss(&self) -> f64 {
        self.loss_of_epoch / self.step_of_epoch.max(1) as f64
    }

    /// Advances to the next epoch.
    pub(crate) fn end_epoch(&mut self) {
        (self.epoch, self.step_of_epoch, self.loss_of_epoch) = (self.epoch + 1, 0, 0.0);
    }

    fn sum(&self) -> Result<Hash128> {
        let json = serde_json::to_vec(self).map_err(|error| Error::bug(format!("the checkpoint: {error}")))?;
        Ok(Hash128::of_block(&json))
    }

    /// Returns the contents of `last.json`.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        let bug = |error: serde_json::Error| Error::bug(format!("the checkpoint: {error}"));
        let mut value = serde_json::to_value(self).map_err(bug)?;
        value[SUM] = self.sum()?.to_string().into();
        serde_json::to_vec_pretty(&value).map_err(bug)
    }

    /// Reads `last.json` and checks its hash.
    pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Self> {
        let damaged = |what: String| Error::input(format!("the checkpoint is damaged: {what}")).at(path.display());
        let mut value: Map<String, Value> = json::parse(bytes, "the checkpoint", path)?;
        let sum = value.remove(SUM);
        let state: Self = serde_json::from_value(Value::Object(value)).map_err(|error| damaged(error.to_string()))?;
        let found = state.sum()?.to_string();
        match sum.as_ref().and_then(Value::as_str) {
            Some(expected) if *expected == found => Ok(state),
            expected => Err(damaged(format!("it hashes to {found}, expected {}", expected.unwrap_or("any hash")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_that_changes_the_state_is_detected() {
        let files = BTreeMap::from([("step-7.model.bpk".to_string(), Hash128(77))]);
        let best = Some(Best { epoch: 1, value: 0.1 + 0.2 });
        let state = TrainingState {
            step: 7,
            step_of_epoch: 3,
            loss_of_epoch: 1.0 / 3.0,
            best,
            files,
            ..TrainingState::at_start(8, None)
        };
        let bytes = state.to_json().unwrap();
        assert_eq!(TrainingState::read(&bytes, Path::new("last.json")).unwrap(), state);
        for place in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[place / 8] ^= 1 << (place % 8);
            // A kind of white space may change into another one without an effect.
            if let Ok(found) = TrainingState::read(&flipped, Path::new("last.json")) {
                assert_eq!(found, state, "bit {place}");
            }
        }
        for length in 0..bytes.len() {
            assert!(TrainingState::read(&bytes[..length], Path::new("last.json")).is_err(), "{length}");
        }
    }
}
