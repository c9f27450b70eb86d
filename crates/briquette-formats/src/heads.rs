//! Recognizes the heads of models by name, if transformers is not known to load the model.
//!
//! A head is a Linear layer that often shares the weight of the embedding. Then the files have no weight for
//! it, and compressed-tensors must be told to ignore it.

/// Names of modules that are heads or contain a head.
const HEADS: [&str; 7] =
    ["lm_head", "proj_out", "embed_out", "output_projection", "generator_lm_head", "vocab_projector", "lm_loss"];

/// Heads inside a module that also has other layers.
const HEADS_WITHIN: [&str; 2] = ["predictions.decoder", "pred_layer.proj"];

/// Returns whether a tensor is the weight of a head or of a layer inside a head.
pub fn is_head(tensor: &str) -> bool {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let ends = |head: &&str| module.strip_suffix(*head).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    module.split('.').any(|segment| HEADS.contains(&segment)) || HEADS_WITHIN.iter().any(ends)
}

/// Returns a pattern for `ignore` that matches every head at any place in a model.
pub(crate) fn pattern() -> String {
    let within = HEADS_WITHIN.map(|head| head.replace('.', r"\."));
    let names = HEADS.map(str::to_string).into_iter().chain(within).collect::<Vec<_>>().join("|");
    format!(r"re:(.*\.)?({names}|lm_head\.decoder)$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_recognized_by_whole_names_at_any_depth() {
        for name in [
            "lm_head.weight",
            "language_model.lm_head.weight",
            "lm_head.decoder.weight",
            "lm_head.dense.weight",
            "cls.predictions.decoder.weight",
            "text_decoder.cls.predictions.decoder.weight",
            "pred_layer.proj.weight",
        ] {
            assert!(is_head(name), "{name}");
        }
        for name in ["decoder.weight", "model.decoder.fc1.weight", "my_lm_head.weight", "mypredictions.decoder.weight"]
        {
            assert!(!is_head(name), "{name}");
        }
    }

    #[test]
    fn the_pattern_has_every_head() {
        let pattern = pattern();
        assert!(pattern.starts_with("re:(.*\\.)?(lm_head|") && pattern.ends_with("|lm_head\\.decoder)$"), "{pattern}");
        assert!(HEADS.iter().all(|head| pattern.contains(head)) && pattern.contains("|predictions\\.decoder|"));
    }
}
