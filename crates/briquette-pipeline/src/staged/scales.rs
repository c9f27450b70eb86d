//! The training of scales, which comes after all other stages: the codes of the quantized model stay.

use super::parts::{read_report, train};
use super::work::Work;
use crate::compress::{compressed_draft, finish};
use crate::report::{Origin, Report};
use crate::trained_scales;
use briquette_core::Result;
use briquette_formats::{Checkpoint, Draft, OutputFormat};
use briquette_recipe::plan::keeps_blocks;
use briquette_recipe::{DistillStage, Recipe, TrainingJob};
use briquette_writer::RunOptions;
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
        origin.allocation = read_report::<Report>(&output.join("report.json"))?.allocation;
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
    let codes_entropy = keeps_blocks(&last, &Checkpoint::open_as(&model, &stage.choice)?);
    let (stages, budget, calibration) = (Vec::new(), None, None);
    compressed_draft(&Recipe { model, stages, budget, calibration, codes_entropy, ..last }, options, origin, None)
}
