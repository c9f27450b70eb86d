//! Weights of the worst tensors, before and after.

use super::escape::name;
use crate::{Report, WeightHistogram, numbers};
use std::fmt::Write;

/// Height of a drawing, in its own units.
const HEIGHT: f64 = 100.0;

/// Returns the figure; empty if no tensor was changed.
pub(super) fn section(report: &Report) -> String {
    if report.histograms.is_empty() {
        return String::new();
    }
    let plots: String = report.histograms.iter().map(|histogram| plot(histogram, report)).collect();
    format!(
        "<section aria-labelledby=\"histograms\">\n<h2 id=\"histograms\">Weights of the worst tensors</h2>\n\
         <p>Number of weights by value: <span class=\"key outline\"></span> {before}, <span class=\"key after\"></span> after. \
         Heights are square roots of counts, so that many zeros do not hide the rest. At most 131,072 weights of each tensor are counted.</p>\n\
         <div class=\"histograms\">\n{plots}</div>\n</section>\n",
        before = if report.trained.is_empty() { "before" } else { "as trained" },
    )
}

fn plot(histogram: &WeightHistogram, report: &Report) -> String {
    let WeightHistogram { name: whose, limit, before, after } = histogram;
    let tensor = report.tensors.iter().find(|tensor| tensor.name == *whose);
    let db = tensor.and_then(|tensor| tensor.error?.sqnr_db);
    let about = match (tensor, db) {
        (Some(tensor), Some(db)) => format!("{}, {} dB", super::escape(&tensor.encoding), numbers::decimal(db, 1)),
        _ => String::new(),
    };
    let most = before.iter().chain(after).copied().max().unwrap_or(0).max(1);
    let n_bins = before.len().max(after.len()).max(1);
    let limit = if limit.is_finite() { limit_text(f64::from(*limit)) } else { numbers::NONE.into() };
    format!(
        "<figure class=\"histogram\">\n<figcaption><b>{whose}</b> <small>{about}</small></figcaption>\n\
         <svg viewBox=\"0 0 {n_bins} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Histogram of the weights of {aria}\">\n\
         <path class=\"after\" d=\"{bars}\"/>\n<path class=\"outline\" d=\"{outline}\"/>\n</svg>\n\
         <p class=\"ends\"><span>−{limit}</span><span>0</span><span>{limit}</span></p>\n</figure>\n",
        whose = name(whose),
        aria = super::escape(whose),
        bars = bars(after, most),
        outline = outline(before, most),
    )
}

/// Returns `0.25` or `1.2e-5`.
fn limit_text(limit: f64) -> String {
    if (0.001..10_000.0).contains(&limit) { format!("{limit:.3}") } else { format!("{limit:.1e}") }
}

/// Returns the position of the top of a bar.
fn top(count: u32, most: u32) -> f64 {
    HEIGHT - (HEIGHT - 2.0) * (f64::from(count) / f64::from(most)).sqrt()
}

fn bars(counts: &[u32], most: u32) -> String {
    counts.iter().enumerate().filter(|(_, count)| **count > 0).fold(String::new(), |mut out, (place, count)| {
        let _ = write!(out, "M{:.2} {HEIGHT}V{:.2}h.84V{HEIGHT}z", place as f64 + 0.08, top(*count, most));
        out
    })
}

/// Returns the outline of all bars as one path.
fn outline(counts: &[u32], most: u32) -> String {
    let mut out = format!("M0 {HEIGHT}");
    for count in counts {
        let _ = write!(out, "V{:.2}h1", top(*count, most));
    }
    let _ = write!(out, "V{HEIGHT}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_counts_is_half_as_high() {
        assert_eq!((top(0, 4), top(1, 4), top(4, 4)), (100.0, 51.0, 2.0));
    }
}
