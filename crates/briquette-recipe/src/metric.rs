//! Which way of a metric is better.

/// Words of the names of metrics of which less is better.
const LESS_IS_BETTER: [&str; 10] =
    ["kl", "perplexity", "ppl", "loss", "nll", "divergence", "error", "mse", "rmse", "mae"];

/// Whether more of a metric is better: of `cosine` and `accuracy` it is, of `perplexity`, `kl` and `mean_error` less is.
///
/// A name is taken word by word, as what lies between signs; of a name with none of the known words more is better.
pub fn is_more_better(metric: &str) -> bool {
    let mut words = metric.split(|c: char| !c.is_alphanumeric());
    !words.any(|word| LESS_IS_BETTER.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_better_of_losses_and_errors_and_more_of_all_else() {
        for metric in ["cosine", "cosine_min", "accuracy", "top5", "agreement", "pair_spearman", "closs", "", "klm"] {
            assert!(is_more_better(metric), "{metric}");
        }
        for metric in ["kl", "perplexity", "reference_perplexity", "valid-loss", "NLL", "mean.error", "mse@8"] {
            assert!(!is_more_better(metric), "{metric}");
        }
    }
}
