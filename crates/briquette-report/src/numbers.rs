//! Numbers as text, for the page and the terminal alike. What is not finite is a dash, never `NaN`.

use super::figures::Report;
use briquette_core::Shape;
pub(super) use briquette_core::printable::printable;

/// Stands for a number that there is not.
pub(super) const NONE: &str = "–";

/// `90.90 MB`, in powers of 1000.
pub fn bytes(n: u64) -> String {
    match unit_of(n as f64) {
        ("B", _) => format!("{n} B"),
        (unit, size) => format!("{:.2} {unit}", n as f64 / size),
    }
}

/// `7.5 MB`, a mark of a scale of bytes: in the unit of `most`, with as many digits as tell marks apart that lie `step` from each other.
pub(super) fn bytes_on_scale(n: f64, step: f64, most: f64) -> String {
    let (unit, size) = unit_of(most);
    format!("{:.*} {unit}", digits_of_step(step / size), n / size)
}

/// Digits after the point that tell numbers apart which lie `step` from each other, a step being 1, 2 or 5 times a power of ten.
pub(super) fn digits_of_step(step: f64) -> usize {
    // A power of ten may have become a little less than itself.
    (-(step.log10() + 1e-6).floor()).clamp(0.0, 12.0) as usize
}

/// The unit for so many bytes, in powers of 1000, and what it stands for.
fn unit_of(n: f64) -> (&'static str, f64) {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    units.into_iter().find(|(_, size)| n >= *size).unwrap_or(("B", 1.0))
}

/// `14,204,112`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with so many digits after the point.
pub(super) fn decimal(value: f64, n_digits: usize) -> String {
    if value.is_finite() { format!("{value:.n_digits$}") } else { NONE.into() }
}

/// `40.0 %` of a share of 0.4; a share too small to show is `< 0.1 %`.
pub(super) fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => NONE.into(),
        share if share > 0.0 && share < 0.001 => "< 0.1 %".into(),
        share if share < 1.0 && share > 0.999 => "> 99.9 %".into(),
        share => format!("{:.1} %", 100.0 * share),
    }
}

/// `3 min 20 s`, `3.21 s`, `41 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if !seconds.is_finite() || seconds < 0.0 => NONE.into(),
        seconds if seconds >= 60.0 => format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor()),
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 0.01 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{:.1} ms", seconds * 1e3),
    }
}

/// `a / b`, or 0 where there is nothing to divide by.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// `6.40x`, how many times `after` goes into `before`.
pub(super) fn ratio(before: u64, after: u64) -> String {
    if before == 0 || after == 0 { NONE.into() } else { format!("{:.2}x", before as f64 / after as f64) }
}

/// Bits for each element.
pub(super) fn bits_per_weight(n_bytes: u64, n_elements: u64) -> String {
    if n_elements == 0 { NONE.into() } else { decimal(n_bytes as f64 * 8.0 / n_elements as f64, 2) }
}

/// A shape as text: `[768, 3072]`.
pub fn shape_text(shape: &[usize]) -> String {
    Shape::from(shape).to_string()
}

/// The share of an estimate by which the measured bytes may differ from it.
const TOLERANCE: f64 = 0.05;

/// The predicted bytes, and how they bound the output: `exactly`, `at most` or `about`.
pub(super) fn predicted(report: &Report) -> (u64, &'static str) {
    match (report.estimated_bytes, report.prediction_is_exact) {
        (Some(estimated), _) => (estimated, "about"),
        (None, true) => (report.predicted_bytes, "exactly"),
        (None, false) => (report.predicted_bytes, "at most"),
    }
}

/// Compares the predicted bytes with the measured ones, in words.
pub(super) fn prediction(report: &Report) -> String {
    let ((predicted, bound), measured) = (predicted(report), report.after.file_bytes);
    let outcome = if predicted == measured {
        "equal".to_string()
    } else if measured < predicted {
        format!("{} less", percent(share(predicted - measured, predicted)))
    } else {
        format!("{} more", percent(share(measured - predicted, predicted)))
    };
    format!("predicted {bound} {} bytes, measured {}: {outcome}", count(predicted), count(measured))
}

/// Whether the measured bytes are as predicted.
pub(super) fn prediction_holds(report: &Report) -> bool {
    let (predicted, measured) = (report.predicted_bytes, report.after.file_bytes);
    match (report.estimated_bytes, report.prediction_is_exact) {
        (Some(estimated), _) => (measured as f64 - estimated as f64).abs() <= TOLERANCE * estimated as f64,
        (None, true) => measured == predicted,
        (None, false) => measured <= predicted,
    }
}

/// The last part of a path, to name a model by.
pub(super) fn last_part(path: &str) -> &str {
    let trimmed = path.trim_end_matches(['/', '\\']);
    trimmed.rsplit(['/', '\\']).next().filter(|part| !part.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_never_not_a_number() {
        assert_eq!([count(0), count(999), count(1_000), count(14_204_112)], ["0", "999", "1,000", "14,204,112"]);
        assert_eq!([decimal(f64::NAN, 2), percent(f64::INFINITY), seconds(f64::NAN), ratio(0, 0)], [NONE; 4]);
        assert_eq!([percent(0.4), percent(0.0002), percent(0.9999)], ["40.0 %", "< 0.1 %", "> 99.9 %"]);
        assert_eq!([seconds(75.5), seconds(1.0), seconds(0.04)], ["1 min 15 s", "1.00 s", "40 ms"]);
    }

    #[test]
    fn an_estimate_of_a_search_is_compared_with_and_not_the_bound_of_the_plan() {
        let mut report = crate::sample::empty();
        (report.predicted_bytes, report.prediction_is_exact, report.after.file_bytes) = (22_783_764, false, 9_142_091);
        report.estimated_bytes = Some(9_100_000);
        let text = prediction(&report);
        assert_eq!(text, "predicted about 9,100,000 bytes, measured 9,142,091: 0.5 % more");
        assert!(prediction_holds(&report));
        report.after.file_bytes = 10_000_000;
        assert!(!prediction_holds(&report));
    }

    #[test]
    fn marks_of_a_scale_differ_and_have_one_unit() {
        assert_eq!([0.02, 0.1, 0.5, 1.0, 20.0].map(digits_of_step), [2, 1, 1, 0, 0]);
        let marks = [0.0, 5e5, 1e6].map(|mark| bytes_on_scale(mark, 5e5, 1e6));
        assert_eq!(marks, ["0.0 MB", "0.5 MB", "1.0 MB"]);
        assert_eq!(
            (bytes_on_scale(20.0, 10.0, 30.0), bytes(999), bytes(1000)),
            ("20 B".into(), "999 B".into(), "1.00 kB".into())
        );
    }
}
