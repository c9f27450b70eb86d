//! Summarizes the results of a batch.

use super::figures::{BatchReport, JobResult};
use super::{metrics, numbers};
use std::collections::BTreeSet;

impl BatchReport {
    /// Returns the sizes of the outputs, such as `90.87 MB → 6.00 MB to 19.41 MB`; `None` if every job failed.
    pub fn sizes_text(&self) -> Option<String> {
        let made = || self.jobs.iter().filter(|job| !job.is_failed());
        let after = range(made().filter_map(|job| job.after_bytes), |n| numbers::bytes(*n))?;
        let before: BTreeSet<u64> = made().filter_map(|job| job.before_bytes).collect();
        Some(match (before.len(), before.first()) {
            (1, Some(&before)) => format!("{} → {after}", numbers::bytes(before)),
            _ => after,
        })
    }

    /// Returns the quality of the outputs, such as `cosine 0.9510 to 0.9995`; empty without an evaluation.
    pub fn quality_text(&self) -> String {
        let words = |name: &&str| {
            let values = self.jobs.iter().filter_map(|job| metric(job, name));
            Some(format!("{} {}", name.replace('_', " "), range(values, |value| metrics::value_text(*value))?))
        };
        let words: Vec<String> = self.metrics().iter().filter_map(words).collect();
        words.join(", ")
    }

    /// Returns the metrics that a table of jobs shows.
    pub fn metrics(&self) -> Vec<&str> {
        metrics::chosen(self.jobs.iter().flat_map(|job| job.metrics.keys()))
    }
}

/// Returns a job's value of a metric.
fn metric(job: &JobResult, name: &str) -> Option<f64> {
    job.metrics.get(name).copied().flatten().filter(|value| value.is_finite())
}

/// Returns the smallest and the largest value as text, or one text if they are equal.
fn range<T: PartialOrd + Copy>(values: impl Iterator<Item = T>, text: impl Fn(&T) -> String) -> Option<String> {
    let ends = values.fold(None, |ends: Option<(T, T)>, value| {
        let (least, most) = ends.unwrap_or((value, value));
        Some((if value < least { value } else { least }, if value > most { value } else { most }))
    });
    let (least, most) = ends.map(|(least, most)| (text(&least), text(&most)))?;
    Some(if least == most { least } else { format!("{least} to {most}") })
}

#[cfg(test)]
mod tests {
    use crate::report::JobStatus;
    use crate::report::sample::{batch, job};

    #[test]
    fn a_batch_result_has_sizes_and_quality() {
        let mut jobs = vec![job("a", JobStatus::Done), job("b", JobStatus::Skipped), job("c", JobStatus::Failed)];
        jobs[0].after_bytes = Some(2000);
        for (job, cosine) in jobs.iter_mut().zip([0.98, 0.9]) {
            job.metrics = [("cosine".to_string(), Some(cosine)), ("cosine_min".into(), None)].into();
        }
        let report = batch(jobs);
        assert_eq!(report.sizes_text().as_deref(), Some("4.00 kB → 1.00 kB to 2.00 kB"));
        assert_eq!(report.quality_text(), "cosine 0.9000 to 0.9800");
        let failed = batch(vec![job("c", JobStatus::Failed)]);
        assert_eq!((failed.sizes_text(), failed.quality_text()), (None, String::new()));
    }
}
