//! Explains why an output leaves bytes of its budget unused.

use super::figures::Report;
use super::numbers;

/// The share of the budget above which no reason is given.
const USED: f64 = 0.995;

impl Report {
    /// Returns the reason for unused bytes of the budget, if there are any.
    pub fn unused_budget(&self) -> Option<String> {
        let allocation = self.allocation.as_ref()?;
        let measured = self.after.file_bytes;
        let most = allocation.most_bytes.filter(|&most| (measured as f64) < USED * most as f64)?;
        let reason = match allocation.is_finest {
            true => "with the finest choices for all tensors; more bytes would not help",
            false => "because no other choices were found that come closer",
        };
        Some(format!("Takes {} of {}, {reason}.", numbers::bytes(measured), numbers::bytes(most)))
    }
}

#[cfg(test)]
mod tests {
    use crate::report::AllocationReport;
    use crate::report::sample;

    #[test]
    fn only_unused_bytes_have_a_reason() {
        let mut report = sample::empty();
        assert_eq!(report.unused_budget(), None, "there is no budget");
        let allocation = AllocationReport {
            target: "at most 23000000 bytes of weight files".into(),
            how: "gradient".into(),
            unit: "1 - cosine".into(),
            most_bytes: Some(23_000_000),
            is_finest: true,
            tensors: Vec::new(),
        };
        (report.allocation, report.after.file_bytes) = (Some(allocation), 19_410_000);
        let text = report.unused_budget().unwrap();
        assert!(text.starts_with("Takes 19.41 MB of 23.00 MB, with the finest choices"), "{text}");
        report.allocation.as_mut().unwrap().is_finest = false;
        assert!(report.unused_budget().unwrap().contains("no other choices"));
        report.after.file_bytes = 22_950_000;
        assert_eq!(report.unused_budget(), None);
    }
}
