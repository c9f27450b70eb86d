//! Findings of a run: checks that pass or fail, and measurements.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A check or a measurement.
pub(crate) struct Finding {
    section: &'static str,
    name: String,
    value: f64,
    unit: &'static str,
    /// The bound as text and whether it holds; `None` for a measurement.
    wanted: Option<(String, bool)>,
}

impl Finding {
    /// Returns a measurement without a bound.
    pub(crate) fn figure(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { section: "", name: name.into(), value, unit, wanted: None }
    }

    /// Returns a check that `value` is at most `most`.
    pub(crate) fn at_most(name: impl Into<String>, value: f64, unit: &'static str, most: f64) -> Self {
        // The comparison is false for NaN, so a NaN fails.
        Self { wanted: Some((format!("<= {most}"), value <= most)), ..Self::figure(name, value, unit) }
    }

    fn has_failed(&self) -> bool {
        self.wanted.as_ref().is_some_and(|(_, holds)| !holds)
    }

    fn line(&self) -> String {
        let wanted = self
            .wanted
            .as_ref()
            .map_or(String::new(), |(wanted, holds)| format!("  {} {wanted}", if *holds { "ok" } else { "FAILED" }));
        let number = if self.value == 0.0 || self.value.abs() >= 0.01 {
            format!("{:.3}", self.value)
        } else {
            format!("{:.2e}", self.value)
        };
        format!("{:<13} {:<66} {number:>14} {:<9}{wanted}", self.section, self.name, self.unit)
    }
}

/// All findings of a run.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    /// Runs a section and prints its findings; a panic counts as a failed check.
    pub(crate) fn section(&mut self, section: &'static str, find: impl FnOnce() -> Vec<Finding>) {
        let found = catch_unwind(AssertUnwindSafe(find)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            let line = text.lines().next().unwrap_or("panicked").to_string();
            vec![Finding { wanted: Some(("no panic".into(), false)), ..Finding::figure(line, f64::NAN, "") }]
        });
        for finding in found {
            let finding = Finding { section, ..finding };
            println!("{}", finding.line());
            self.0.push(finding);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.iter().any(Finding::has_failed)
    }

    /// Prints all findings again, failures first.
    pub(crate) fn print(&self) {
        let (failed, held): (Vec<_>, Vec<_>) = self.0.iter().partition(|finding| finding.has_failed());
        println!("\n{} of {} failed", failed.len(), self.0.len());
        failed.iter().chain(&held).for_each(|finding| println!("{}", finding.line()));
    }

    pub(crate) fn to_json(&self) -> String {
        let one = |finding: &Finding| {
            serde_json::json!({
                "section": finding.section, "name": finding.name, "value": finding.value, "unit": finding.unit,
                "wanted": finding.wanted.as_ref().map(|(wanted, _)| wanted), "failed": finding.has_failed(),
            })
        };
        serde_json::to_string_pretty(&self.0.iter().map(one).collect::<Vec<_>>()).unwrap()
    }
}
