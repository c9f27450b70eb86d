//! Weights of the worst tensors, before and after.

use super::escape::{escape, name};
use crate::report::{Report, WeightHistogram, numbers};
use maud::{Markup, html};
use std::fmt::Write;

/// Height of a drawing, in its own units.
const HEIGHT: f64 = 100.0;

/// Returns the figure; empty if no tensor was changed.
pub(super) fn section(report: &Report) -> Markup {
    if report.histograms.is_empty() {
        return Markup::default();
    }
    html! {
        section aria-labelledby="histograms" {
            h2 id="histograms" { "Weights of the worst tensors" }
            p {
                "Number of weights by value: " span class="key outline" {} " "
                (if report.trained.is_empty() { "before" } else { "as trained" }) ", "
                span class="key after" {} " after. \
                 Heights are square roots of counts, so that many zeros do not hide the rest. \
                 At most 131,072 weights of each tensor are counted."
            }
            div class="histograms" { @for histogram in &report.histograms { (plot(histogram, report)) "\n" } }
        }
    }
}

fn plot(histogram: &WeightHistogram, report: &Report) -> Markup {
    let WeightHistogram { name: whose, limit, before, after } = histogram;
    let tensor = report.tensors.iter().find(|tensor| tensor.name == *whose);
    let about = tensor.and_then(|tensor| Some((tensor, tensor.error?.sqnr_db?)));
    let most = before.iter().chain(after).copied().max().unwrap_or(0).max(1);
    let n_bins = before.len().max(after.len()).max(1);
    let limit = if limit.is_finite() { limit_text(f64::from(*limit)) } else { numbers::NONE.into() };
    html! {
        figure class="histogram" {
            figcaption {
                b { (name(whose)) } " "
                small {
                    @if let Some((tensor, db)) = about {
                        (escape(&tensor.encoding)) ", " (numbers::decimal(db, 1)) " dB"
                    }
                }
            }
            svg viewBox=(format_args!("0 0 {n_bins} {HEIGHT}")) preserveAspectRatio="none" role="img"
                aria-label={ "Histogram of the weights of " (escape(whose)) } {
                path class="after" d=(bars(after, most)) {}
                path class="outline" d=(outline(before, most)) {}
            }
            p class="ends" { span { "−" (limit) } span { "0" } span { (limit) } }
        }
    }
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
