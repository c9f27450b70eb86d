//! Numbers as text, for page and terminal. A number that is not finite is a dash.

use super::figures::Report;
use briquette_core::Shape;
pub(super) use briquette_core::printable::printable;

/// The text of a missing number.
pub(super) const NONE: &str = "–";

/// Returns a size such as `90.90 MB`, with decimal units.
pub fn bytes(n: u64) -> String {
    match unit_of(n as f64) {
        ("B", _) => format!("{n} B"),
        (unit, size) => format!("{:.2} {unit}", n as f64 / size),
    }
}

/// Returns a large number in short, such as `18.87 M`.
pub fn amount(n: u64) -> String {
    let units = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match units.into_iter().find(|(_, size)| n as f64 >= *size) {
        Some((unit, size)) => format!("{:.2} {unit}", n as f64 / size),
        None => n.to_string(),
    }
}

/// Returns a tick of a scale of bytes, such as `7.5 MB`, in the unit of `most`, with enough digits for ticks
/// `step` apart.
pub(super) fn bytes_on_scale(n: f64, step: f64, most: f64) -> String {
    let (unit, size) = unit_of(most);
    format!("{:.*} {unit}", digits_of_step(step / size), n / size)
}

/// Returns the number of decimal places for numbers `step` apart; a step is 1, 2 or 5 times a power of ten.
pub(super) fn digits_of_step(step: f64) -> usize {
    // The offset corrects powers of ten that are slightly too small.
    (-(step.log10() + 1e-6).floor()).clamp(0.0, 12.0) as usize
}

/// Returns the decimal unit for a number of bytes, and its size.
fn unit_of(n: f64) -> (&'static str, f64) {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    units.into_iter().find(|(_, size)| n >= *size).unwrap_or(("B", 1.0))
}

/// Returns a number such as `14,204,112`.
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

/// Returns a number with `n_digits` decimal places.
pub(super) fn decimal(value: f64, n_digits: usize) -> String {
    if value.is_finite() { format!("{value:.n_digits$}") } else { NONE.into() }
}

/// Returns `40.0 %` for a share of 0.4, and `< 0.1 %` for a very small share.
pub(super) fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => NONE.into(),
        share if share > 0.0 && share < 0.001 => "< 0.1 %".into(),
        share if share < 1.0 && share > 0.999 => "> 99.9 %".into(),
        share => format!("{:.1} %", 100.0 * share),
    }
}

/// Returns a duration: `3 min 20 s`, `3.21 s`, `41 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if !seconds.is_finite() || seconds < 0.0 => NONE.into(),
        seconds if seconds >= 60.0 => format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor()),
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 0.01 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{:.1} ms", seconds * 1e3),
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns the ratio of `before` to `after`: `6.40x`.
pub(super) fn ratio(before: u64, after: u64) -> String {
    if before == 0 || after == 0 { NONE.into() } else { format!("{:.2}x", before as f64 / after as f64) }
}

/// Returns the bits per element.
pub(super) fn bits_per_weight(n_bytes: u64, n_elements: u64) -> String {
    if n_elements == 0 { NONE.into() } else { decimal(n_bytes as f64 * 8.0 / n_elements as f64, 2) }
}

/// Returns a shape as text: `[768, 3072]`.
pub fn shape_text(shape: &[usize]) -> String {
    Shape::from(shape).to_string()
}

/// The allowed relative deviation of the measured bytes from an estimate.
const TOLERANCE: f64 = 0.05;

/// Returns the predicted bytes, and the kind of bound: `exactly`, `at most` or `about`.
pub(super) fn predicted(report: &Report) -> (u64, &'static str) {
    match (report.estimated_bytes, report.prediction_is_exact) {
        (Some(estimated), _) => (estimated, "about"),
        (None, true) => (report.predicted_bytes, "exactly"),
        (None, false) => (report.predicted_bytes, "at most"),
    }
}

/// Compares the predicted bytes with the measured ones, as text.
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

/// Returns whether the measured bytes match the prediction.
pub(super) fn prediction_holds(report: &Report) -> bool {
    let (predicted, measured) = (report.predicted_bytes, report.after.file_bytes);
    match (report.estimated_bytes, report.prediction_is_exact) {
        (Some(estimated), _) => (measured as f64 - estimated as f64).abs() <= TOLERANCE * estimated as f64,
        (None, true) => measured == predicted,
        (None, false) => measured <= predicted,
    }
}

/// Returns the last part of a path, as the name of a model.
pub(super) fn last_part(path: &str) -> &str {
    let trimmed = path.trim_end_matches(['/', '\\']);
    trimmed.rsplit(['/', '\\']).next().filter(|part| !part.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_never_nan() {
        assert_eq!([count(0), count(999), count(1_000), count(14_204_112)], ["0", "999", "1,000", "14,204,112"]);
        assert_eq!([decimal(f64::NAN, 2), percent(f64::INFINITY), seconds(f64::NAN), ratio(0, 0)], [NONE; 4]);
        assert_eq!([percent(0.4), percent(0.0002), percent(0.9999)], ["40.0 %", "< 0.1 %", "> 99.9 %"]);
        assert_eq!([seconds(75.5), seconds(1.0), seconds(0.04)], ["1 min 15 s", "1.00 s", "40 ms"]);
    }

    #[test]
    fn an_estimate_replaces_the_bound_of_the_plan() {
        let mut report = crate::report::sample::empty();
        (report.predicted_bytes, report.prediction_is_exact, report.after.file_bytes) = (22_783_764, false, 9_142_091);
        report.estimated_bytes = Some(9_100_000);
        let text = prediction(&report);
        assert_eq!(text, "predicted about 9,100,000 bytes, measured 9,142,091: 0.5 % more");
        assert!(prediction_holds(&report));
        report.after.file_bytes = 10_000_000;
        assert!(!prediction_holds(&report));
    }

    #[test]
    fn ticks_of_a_scale_differ_and_have_one_unit() {
        assert_eq!([0.02, 0.1, 0.5, 1.0, 20.0].map(digits_of_step), [2, 1, 1, 0, 0]);
        let marks = [0.0, 5e5, 1e6].map(|mark| bytes_on_scale(mark, 5e5, 1e6));
        assert_eq!(marks, ["0.0 MB", "0.5 MB", "1.0 MB"]);
        assert_eq!(
            (bytes_on_scale(20.0, 10.0, 30.0), bytes(999), bytes(1000)),
            ("20 B".into(), "999 B".into(), "1.00 kB".into())
        );
    }
}
