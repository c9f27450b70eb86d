//! What was done to a model before the last stages of its recipe read it.

use super::figures::{AllocationReport, DistillReport, FactorReport, StageBytes};
use super::original::Original;
use briquette_recipe::Recipe;
use std::path::PathBuf;
use std::time::Instant;

/// Where the model of a run comes from: what was done to it before.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The recipe's own model: what the output is compared with.
    pub model: PathBuf,
    /// Its figures, where the last stages read another model: a student, or factors.
    pub original: Option<Original>,
    /// The trainings.
    pub trained: Vec<DistillReport>,
    /// Linear layers that became two factors.
    pub factorized: Vec<FactorReport>,
    /// What the model's file holds besides the model, in words, where the run reads another.
    pub notes: Vec<String>,
    /// Bytes after each part.
    pub bytes: Vec<StageBytes>,
    /// The file of metrics that the last training wrote line by line.
    pub metrics: Option<PathBuf>,
    /// Seconds of each part.
    pub seconds: Vec<(String, f64)>,
    /// Steps that were found for the sake of a budget.
    pub allocation: Option<AllocationReport>,
    /// Bytes of the output's weight files as the search of a budget estimates them, where it searches for the fewest.
    pub estimated_bytes: Option<u64>,
    /// When the run began: its report counts the time from there.
    pub started: Instant,
    /// Seconds that earlier runs spent on parts that this run took over from them.
    pub spent: f64,
}

impl Origin {
    /// The origin of a run that begins now and reads the recipe's own model.
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            model: recipe.model.clone(),
            original: None,
            trained: Vec::new(),
            factorized: Vec::new(),
            notes: Vec::new(),
            bytes: Vec::new(),
            metrics: None,
            seconds: Vec::new(),
            allocation: None,
            estimated_bytes: None,
            started: Instant::now(),
            spent: 0.0,
        }
    }

    /// Adds a part that took so many seconds, `now` of them in this run.
    pub fn add_seconds(&mut self, part: String, seconds: f64, now: f64) {
        self.seconds.push((part, seconds));
        self.spent += seconds - now;
    }

    /// Seconds since the run began, and those that earlier runs spent on its parts.
    pub(super) fn total_seconds(&self) -> f64 {
        self.spent + self.started.elapsed().as_secs_f64()
    }

    /// The weight files have so many bytes after a part.
    pub fn add_bytes(&mut self, stage: String, file_bytes: u64) {
        self.bytes.push(StageBytes { stage, file_bytes });
    }
}
