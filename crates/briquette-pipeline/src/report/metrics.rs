//! The metrics of a headline.

use super::figures::REFERENCE;
use super::numbers;
use std::collections::BTreeMap;

/// Metrics in order of preference.
const PREFERRED: [&str; 6] = ["sts_spearman", "accuracy", "perplexity", "agreement", "cosine", "kl"];
/// Number of metrics in a headline.
const N_SHOWN: usize = 2;
/// Number of decimal places.
const N_DIGITS: usize = 4;

/// Chooses up to two of the measured metrics for a headline. Metrics of the original do not count.
pub fn chosen<'a>(measured: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let mut names: Vec<&str> =
        measured.into_iter().map(String::as_str).filter(|name| !name.starts_with(REFERENCE)).collect();
    names.sort_unstable();
    names.dedup();
    let rank = |name: &str| PREFERRED.iter().position(|preferred| *preferred == name);
    let mut found: Vec<&str> = names.iter().copied().filter(|name| rank(name).is_some()).collect();
    found.sort_by_key(|name| rank(name));
    if found.is_empty() { names.into_iter().take(1).collect() } else { found.into_iter().take(N_SHOWN).collect() }
}

/// Returns the metrics of a headline: `cosine 0.8851`, or `accuracy 0.9833 (original 0.9861)`.
pub(super) fn in_words(metrics: &BTreeMap<String, f64>) -> String {
    let words = |name: &str| {
        let number = |key: &str| metrics.get(key).map(|value| value_text(*value));
        let before = number(&format!("{REFERENCE}{name}"));
        let before = before.map_or(String::new(), |before| format!(" (original {before})"));
        format!("{} {}{before}", name.replace('_', " "), number(name).unwrap_or_default())
    };
    let words: Vec<String> = chosen(metrics.keys()).into_iter().map(words).collect();
    words.join(", ")
}

/// Returns a metric's value as text.
pub fn value_text(value: f64) -> String {
    numbers::decimal(value, N_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(metrics: &[(&str, f64)]) -> String {
        in_words(&metrics.iter().map(|(name, value)| (name.to_string(), *value)).collect())
    }

    #[test]
    fn a_headline_has_the_metric_of_the_task_first_with_the_originals_value() {
        let found = [("accuracy", 0.98333), ("kl", 0.01), ("agreement", 0.99), ("reference_accuracy", 0.98611)];
        assert_eq!(words(&found), "accuracy 0.9833 (original 0.9861), agreement 0.9900");
        let found = [("cosine", 0.88512), ("cosine_min", 0.5), ("pair_spearman", 0.97)];
        assert_eq!(words(&found), "cosine 0.8851");
        assert_eq!(words(&[("my_score", f64::NAN), ("other", 1.0)]), format!("my score {}", numbers::NONE));
        assert_eq!(words(&[]), "");
    }
}
