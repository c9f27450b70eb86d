//! The history of a model before the last stages of its recipe.

use super::figures::{AllocationReport, DistillReport, FactorReport, FoldReport, ShrinkReport, StageBytes};
use super::original::Original;
use briquette_recipe::Recipe;
use std::path::PathBuf;
use std::time::Instant;

/// The origin of a run's model: the parts that ran before.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The recipe's own model, which the output is compared with.
    pub model: PathBuf,
    /// The figures of the recipe's model, if the last stages read a student or factors.
    pub original: Option<Original>,
    /// The trainings.
    pub trained: Vec<DistillReport>,
    /// The factorized linear layers.
    pub factorized: Vec<FactorReport>,
    /// The channels, heads and blocks that were removed.
    pub shrunk: Vec<ShrinkReport>,
    /// The folds.
    pub folded: Vec<FoldReport>,
    /// Notes about other entries of the model's file, if the last stages read another model.
    pub notes: Vec<String>,
    /// Bytes after each part.
    pub bytes: Vec<StageBytes>,
    /// The metrics file of the last training.
    pub metrics: Option<PathBuf>,
    /// Seconds of each part.
    pub seconds: Vec<(String, f64)>,
    /// The step sizes that a budget chose.
    pub allocation: Option<AllocationReport>,
    /// An output whose tensors keep their scales, if these follow the frequency of tokens.
    pub rounded: Option<PathBuf>,
    /// The file with the factors of trained scales.
    pub scales: Option<PathBuf>,
    /// Estimated bytes of the output's weight files, if a budget searches for the smallest size.
    pub estimated_bytes: Option<u64>,
    /// The start of the run.
    pub started: Instant,
    /// Seconds that earlier runs spent on parts that this run reuses.
    pub spent: f64,
}

impl Origin {
    /// Returns the origin of a run that starts now with the recipe's own model.
    pub fn of(recipe: &Recipe) -> Self {
        Self {
            model: recipe.model.clone(),
            original: None,
            trained: Vec::new(),
            factorized: Vec::new(),
            shrunk: Vec::new(),
            folded: Vec::new(),
            notes: Vec::new(),
            bytes: Vec::new(),
            metrics: None,
            seconds: Vec::new(),
            allocation: None,
            rounded: None,
            scales: None,
            estimated_bytes: None,
            started: Instant::now(),
            spent: 0.0,
        }
    }

    /// Adds a part that took `seconds`, of which `now` were in this run.
    pub fn add_seconds(&mut self, part: String, seconds: f64, now: f64) {
        self.seconds.push((part, seconds));
        self.spent += seconds - now;
    }

    /// Returns the seconds since the start of the run, plus those of reused parts.
    pub(super) fn total_seconds(&self) -> f64 {
        self.spent + self.started.elapsed().as_secs_f64()
    }

    /// Adds the bytes of the weight files after a part.
    pub fn add_bytes(&mut self, stage: String, file_bytes: u64) {
        self.bytes.push(StageBytes { stage, file_bytes });
    }
}
