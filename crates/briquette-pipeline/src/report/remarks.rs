//! The warnings of a report.

use super::evidence::Evidence;
use super::figures::{DistillReport, Report};
use super::usual_loss;
use briquette_core::Storage;
use briquette_formats::OutputFormat;
use briquette_writer::TensorPlan;

/// Returns the warnings of a run.
pub(super) fn of(report: &Report, evidence: &Evidence) -> Vec<String> {
    let mut remarks = usual_loss::of(report, evidence);
    remarks.extend(evidence.plan.remarks.iter().cloned());
    remarks.extend(useless_pruning_text(report, evidence));
    remarks.extend(report.trained.iter().filter_map(|training| chosen_by_result(report, training)));
    remarks.extend(evidence.plan.untested.as_deref().map(untested_text));
    if report.after.file_bytes >= report.before.file_bytes {
        remarks.push("The output is not smaller than the original.".into());
    }
    if evidence.plan.tensors.iter().any(|tensor| tensor.skipped.as_deref() == Some(briquette_writer::survey::NONFINITE))
    {
        remarks.push("Tensors with NaN or infinity were not changed.".into());
    }
    remarks.extend(evidence.plan.unsure_text());
    for (path, reason) in evidence.checkpoint.left_behind() {
        remarks.push(format!("{} was not copied: {reason}.", path.display()));
    }
    remarks
}

/// Warns that zeros saved no bytes, if the format stores them like other values.
fn useless_pruning_text(report: &Report, evidence: &Evidence) -> Option<String> {
    let mut pruned = evidence.plan.tensors.iter().filter(|tensor| tensor.prune.is_some()).peekable();
    pruned.peek()?;
    // Frequent zeros take few bits where codes are entropy-coded.
    let is_smaller = |tensor: &TensorPlan| {
        matches!(evidence.layout.tensors.of(tensor.index()).coding.storage, Storage::Bitmask | Storage::Entropy { .. })
    };
    if pruned.any(is_smaller) {
        return None;
    }
    let format = &report.format;
    let why = format!("Pruning saved no bytes: the format {format} stores zeros like other values.");
    Some(match evidence.plan.profile {
        OutputFormat::Briquette => {
            "Pruning saved no bytes: a mask of one bit for each weight would take more than the zeros.".into()
        }
        // The network of an ONNX model cannot change its format.
        profile if profile.is_in_place() => why,
        _ => format!("{why} Use the format briquette to store zeros in one bit."),
    })
}

/// Warns that the output may not load.
pub fn untested_text(why: &str) -> String {
    format!("Transformers is not known to load this ({why}). --allow-untested permits it; test the output before use.")
}

/// Warns that the evaluation data also chose the epoch. Without an evaluation, the epochs' metrics are the
/// result.
fn chosen_by_result(report: &Report, training: &DistillReport) -> Option<String> {
    let (epoch, data) = (training.best_epoch?, training.epochs_on.as_deref()?);
    let is_reported_on = report.evaluation.as_ref().is_none_or(|found| found.data == data);
    let metric = training.chosen_by.as_deref().unwrap_or("metric");
    is_reported_on.then(|| {
        format!(
            "Epoch {epoch} was kept for its {metric} on {data}, which is also the evaluation data: on other data, the result may be \
             worse. Set `select` in [data] to choose the epoch by other data."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn only_an_epoch_chosen_by_the_evaluation_data_has_a_warning() {
        let mut report = sample::of_layers(1);
        let said = |report: &Report| chosen_by_result(report, &report.trained[0]);
        let sentence = said(&report).unwrap();
        assert!(sentence.starts_with("Epoch 1 was kept for its cosine on sentences.txt"), "{sentence}");
        assert!(sentence.contains("`select` in [data]"), "{sentence}");
        report.trained[0].epochs_on = Some("others.txt".into());
        assert_eq!(said(&report), None);
        report.evaluation = None;
        assert!(said(&report).is_some(), "the metrics of the epochs are the result");
        report.trained[0].best_epoch = None;
        assert_eq!(said(&report), None);
    }
}
