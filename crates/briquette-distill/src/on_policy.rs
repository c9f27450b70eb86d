//! On-policy batches, which the student samples itself.

use crate::traced::{Traced, TrainingBatch};
use briquette_core::Result;
use briquette_core::random::{mixed, uniform};

/// Separates the random numbers of this choice from those of dropout.
const STREAM: u64 = 0x6f6e_5f70_6f6c;

/// Replaces a batch by one that the student sampled, with probability `share`.
///
/// A sampled batch has no labels and no row indices: cached outputs of a teacher do not apply to it. `seed`
/// determines choice and sample, so a continued training makes the same ones. Source: Agarwal et al., "On-Policy
/// Distillation of Language Models", 2024, algorithm 1.
///
/// # Errors
/// See [`Traced::sampled`].
pub(crate) fn chosen<N: Traced>(
    student: &N,
    batch: TrainingBatch<N::Input>,
    share: f64,
    seed: u64,
) -> Result<TrainingBatch<N::Input>> {
    if f64::from(uniform(seed, STREAM)) >= share {
        return Ok(batch);
    }
    let input = student.valid().sampled(&batch.input, mixed(seed, STREAM))?;
    Ok(TrainingBatch::new(input))
}
