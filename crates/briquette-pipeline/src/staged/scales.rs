//! The training of scales, which comes after all other stages: the codes of the quantized model stay.

use super::parts::train;
use super::work::Work;
use crate::compress::{compressed_draft, finish};
use crate::report::{Origin, Report};
use crate::trained_scales;
use briquette_core::{Result, Storage};
use briquette_formats::{Checkpoint, Draft, InputFile, OutputFormat, json, limits};
use briquette_recipe::{DistillStage, Recipe, TrainingJob};
use briquette_writer::RunOptions;
use std::path::Path;
use std::time::Instant;

/// Makes the output of a recipe that ends with a training of scales, verified but without its report and not published.
///
/// `last` has the stages before the training. `quantized` makes their output; without stages, the model itself has codes.
///
/// # Errors
/// See [`run()`](crate::run()).
pub(super) fn draft(
    stage: &DistillStage,
    (recipe, last): (&Recipe, Recipe),
    (work, options): (&Work, &RunOptions),
    origin: &mut Origin,
    quantized: impl FnOnce(&Recipe, &Origin) -> Result<(Draft, Report)>,
) -> Result<(Draft, Report)> {
    let index = recipe.parts.len();
    let mut model = last.model.clone();
    if !last.stages.is_empty() {
        let (output, since) = (work.part(index, "compress"), Instant::now());
        if !work.is_done(&output, options)? {
            let profile = if last.profile.held_codes().is_some() { last.profile } else { OutputFormat::Briquette };
            let first = Recipe { output: output.clone(), evaluate: None, profile, ..last.clone() };
            let (draft, mut report) = quantized(&first, origin)?;
            finish(&mut report, origin, &draft)?;
            draft.publish()?;
        }
        let (name, now) = (format!("compress {}", index + 1), since.elapsed().as_secs_f64());
        origin.add_seconds(name.clone(), now, now);
        origin.add_bytes(name, Checkpoint::open(&output)?.weight_bytes());
        origin.allocation = report_of(&output)?.allocation;
        model = output;
    }
    let (output, checkpoints) = (work.part(index, "distill"), work.checkpoints(index));
    let job = TrainingJob {
        stage,
        pruned: &[],
        roles: &recipe.roles,
        calibration: recipe.calibration.as_ref(),
        original: &recipe.model,
        model: &model,
        output: &output,
        work: &checkpoints,
    };
    train(&job, index, (work, options), origin)?;
    origin.scales = Some(output.join(trained_scales::FILE));
    let codes_entropy = last.codes_entropy || has_blocks(&Checkpoint::open_as(&model, &stage.choice)?);
    let (stages, budget, calibration) = (Vec::new(), None, None);
    compressed_draft(&Recipe { model, stages, budget, calibration, codes_entropy, ..last }, options, origin, None)
}

/// Returns whether some codes are entropy-coded.
fn has_blocks(checkpoint: &Checkpoint) -> bool {
    let tensors = checkpoint.stored().map(|stored| &stored.tensors);
    tensors.is_some_and(|tensors| tensors.iter().any(|tensor| matches!(tensor.coding.storage, Storage::Entropy { .. })))
}

fn report_of(output: &Path) -> Result<Report> {
    let path = output.join("report.json");
    json::parse(&InputFile::open(&path)?.read_all(limits::MAX_OWN_BYTES)?, "the report", &path)
}
