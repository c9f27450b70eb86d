//! The notes of a report, which are not warnings.

use super::evidence::Evidence;
use super::figures::{FactorReport, FoldReport, Report, ShrinkReport};
use super::numbers::shape_text;
use crate::report::inspect;

/// Number of factorized layers in a note.
const N_LISTED: usize = 8;

/// Describes what ran as requested, and other entries of the model's files.
pub(super) fn of(report: &Report, evidence: &Evidence) -> Vec<String> {
    let mut notes = briquette_recipe::plan::notes(evidence.recipe, evidence.plan);
    if !evidence.origin.trained.is_empty() {
        notes.push(
            "Weights were trained: errors of tensors are against the trained student, and `verify --against` cannot recompute the weights from the original.".into(),
        );
    }
    if !report.factorized.is_empty() {
        notes.push(factorized_text(&report.factorized));
    }
    notes.extend(report.shrunk.iter().flat_map(ShrinkReport::in_words));
    notes.extend(report.folded.iter().flat_map(FoldReport::in_words));
    notes.extend(report.unused_budget());
    // After earlier parts, `checkpoint` is their output. The notes about the original's file are in `origin`.
    notes.extend(evidence.origin.notes.iter().cloned());
    if evidence.origin.original.is_none() {
        notes.extend(inspect::notes_of(evidence.checkpoint));
    }
    notes
}

/// Lists the factorized linear layers.
fn factorized_text(layers: &[FactorReport]) -> String {
    let made = layers.iter().filter_map(|layer| Some((layer, layer.rank?)));
    let words = |(layer, rank): (&FactorReport, usize)| {
        format!(
            "{} {} has rank {rank} ({:.1} % of its energy)",
            layer.name,
            shape_text(&layer.shape),
            1e2 * layer.energy
        )
    };
    let listed: Vec<String> = made.clone().take(N_LISTED).map(words).collect();
    let more = made.clone().count().saturating_sub(N_LISTED);
    let more = if more > 0 { format!(" and {more} more (report.json)") } else { String::new() };
    format!(
        "{} of {} linear layers are products of two factors: {}{more}.",
        made.count(),
        layers.len(),
        listed.join(", ")
    )
}
