//! The metrics of an evaluation: meaning, range and direction.

/// A metric of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// The name in reports, gates and budgets.
    pub name: &'static str,
    /// A short description.
    pub meaning: &'static str,
    /// The smallest and the largest possible value.
    pub range: [f64; 2],
    /// Which values are better.
    pub direction: Direction,
    /// The unit of its values; empty for a number without one, such as a share or a cosine.
    pub unit: &'static str,
}

/// Which values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Larger values are better.
    Higher,
    /// Smaller values are better.
    Lower,
}

/// Returns a metric for which larger is better.
const fn score(name: &'static str, range: [f64; 2], meaning: &'static str) -> Metric {
    Metric { name, meaning, range, direction: Direction::Higher, unit: "" }
}

/// Returns a metric for which smaller is better.
const fn loss(name: &'static str, least: f64, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { name, meaning, range: [least, f64::INFINITY], direction: Direction::Lower, unit }
}

/// All metrics.
pub const METRICS: [Metric; 13] = [
    score("cosine", [-1.0, 1.0], "mean cosine similarity of embeddings with the original's"),
    score("cosine_min", [-1.0, 1.0], "smallest cosine similarity of an embedding with the original's"),
    score("pair_spearman", [-1.0, 1.0], "rank correlation of the similarities of all pairs with the original's"),
    score("sts_spearman", [-1.0, 1.0], "rank correlation of similarities, or of scores of pairs, with human ratings"),
    score("score_spearman", [-1.0, 1.0], "rank correlation of scores with the original's"),
    score("accuracy", [0.0, 1.0], "share of correct classes"),
    score("f1", [0.0, 1.0], "F1 of each class, averaged over the classes"),
    score("top5", [0.0, 1.0], "share of items whose label is among the five most likely classes"),
    score("agreement", [0.0, 1.0], "share of items with the same class as the original gives"),
    loss("kl", 0.0, "nats", "mean KL divergence from the original model, in nats"),
    loss("perplexity", 1.0, "", "exponential of the mean negative log likelihood of a token"),
    loss("wer", 0.0, "", "word error rate of transcribed speech"),
    score("same_words", [0.0, 1.0], "share of sounds for which the original writes the same words"),
];

/// The prefix of metrics of the original model: `reference_accuracy`.
const REFERENCE: &str = "reference_";

/// Words in the names of other metrics for which smaller is better.
const LESS_IS_BETTER: [&str; 10] =
    ["kl", "perplexity", "ppl", "loss", "nll", "divergence", "error", "mse", "rmse", "mae"];

impl Metric {
    /// Returns the metric with this name, with or without the prefix `reference_`.
    pub fn named(name: &str) -> Option<&'static Self> {
        let name = name.strip_prefix(REFERENCE).unwrap_or(name);
        METRICS.iter().find(|metric| metric.name == name)
    }
}

/// Returns whether a larger value of a metric is better.
///
/// That is true for `cosine` and `accuracy`, and false for `perplexity`, `kl` and `mean_error`. A name that is
/// not in [`METRICS`] is split into words at punctuation. If none of its words is known, larger is better.
pub fn is_more_better(metric: &str) -> bool {
    if let Some(known) = Metric::named(metric) {
        return known.direction == Direction::Higher;
    }
    let mut words = metric.split(|c: char| !c.is_alphanumeric());
    !words.any(|word| LESS_IS_BETTER.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_is_better_for_losses_and_errors_only() {
        for metric in ["cosine", "cosine_min", "accuracy", "top5", "agreement", "pair_spearman", "closs", "", "klm"] {
            assert!(is_more_better(metric), "{metric}");
        }
        for metric in ["kl", "perplexity", "reference_perplexity", "valid-loss", "NLL", "mean.error", "mse@8"] {
            assert!(!is_more_better(metric), "{metric}");
        }
    }

    #[test]
    fn metrics_have_unique_names_and_valid_ranges() {
        for (place, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..place].iter().all(|other| other.name != metric.name), "{}", metric.name);
            assert!(metric.range[0] < metric.range[1] && !metric.meaning.is_empty(), "{}", metric.name);
        }
        assert_eq!(Metric::named("reference_kl").map(|metric| metric.range[0]), Some(0.0));
        assert_eq!(Metric::named("recall@0.5"), None);
    }
}
