//! Which weights transformers loads as plain Linear layers, by the `model_type` in `config.json`.
//!
//! Only these may be codes in compressed-tensors. `known.rs` lists the supported families, and
//! `bench/interop_families.py` loads each of them.

mod family;
mod known;

pub use family::{Limits, LoadableFamily};
use serde_json::Value;

impl LoadableFamily {
    /// Returns the family of a `config.json`.
    ///
    /// # Errors
    /// The reason, as text: the file or its `model_type` is missing, or the family is not supported.
    pub fn of(config: Option<&[u8]>) -> Result<&'static Self, String> {
        let config = config.ok_or("there is no config.json with its family")?;
        let config: Value = crate::json::parsed(config).map_err(|_| "its config.json is not JSON")?;
        let Some(model_type) = config.get("model_type").and_then(Value::as_str) else {
            return Err("its config.json has no model_type".into());
        };
        let found = known::families().find(|family| family.model_types.contains(&model_type));
        found.ok_or_else(|| format!("models of type {model_type:?} were not tested"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(model_type: &str) -> &'static LoadableFamily {
        LoadableFamily::of(Some(format!("{{\"model_type\": {model_type:?}}}").as_bytes())).unwrap()
    }

    #[test]
    fn layers_are_recognized_with_and_without_the_base_prefix() {
        let bert = family("bert");
        for name in ["bert.encoder.layer.3.attention.self.query.weight", "encoder.layer.3.attention.self.query.weight"]
        {
            assert!(bert.is_linear(name), "{name}");
        }
        for name in [
            "roberta.encoder.layer.3.attention.self.query.weight",
            "encoder.layer.3.attention.self.query.bias",
            "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.weight",
        ] {
            assert!(!bert.is_linear(name), "{name}");
        }
        assert_eq!(bert.aliases("bert.pooler.dense", false), ["bert.pooler.dense", "pooler.dense"]);
        assert_eq!(bert.aliases("pooler.dense", true), ["pooler.dense", "bert.pooler.dense"]);
        assert_eq!(bert.aliases("classifier", false), ["classifier"]);
    }

    #[test]
    fn renamed_modules_have_both_names() {
        let names = family("vit").aliases("vit.encoder.layer.0.attention.output.dense", false);
        assert!(names.contains(&"vit.layers.0.attention.o_proj".to_string()), "{names:?}");
        assert!(names.contains(&"layers.0.attention.o_proj".to_string()), "{names:?}");
    }

    #[test]
    fn moved_parts_have_the_names_of_both_classes() {
        let names = family("llava").aliases("language_model.model.layers.0.mlp.up_proj", false);
        for name in ["model.language_model.layers.0.mlp.up_proj", "language_model.layers.0.mlp.up_proj"] {
            assert!(names.contains(&name.to_string()), "{names:?}");
        }
        assert!(family("llava").aliases("language_model.lm_head", false).contains(&"lm_head".to_string()));
    }

    #[test]
    fn unsaved_heads_are_listed() {
        let unsaved = |model_type: &str, names: &[&str]| family(model_type).unsaved(names.iter().copied());
        assert!(unsaved("bert", &["encoder.layer.0.output.dense.weight", "pooler.dense.weight"]).is_empty());
        let head = ["bert.pooler.dense.weight", "cls.predictions.bias"];
        assert_eq!(unsaved("bert", &head), ["cls.predictions.decoder"]);
        let saved = ["bert.pooler.dense.weight", "cls.predictions.decoder.weight"];
        assert!(unsaved("bert", &saved).is_empty());
        assert_eq!(unsaved("bert", &["bert.embeddings.x.weight"]), ["bert.pooler.dense", "pooler.dense"]);
        assert_eq!(unsaved("whisper", &["model.encoder.conv1.weight"]), ["proj_out"]);
        assert_eq!(unsaved("distilbert", &["vocab_projector.bias"]), ["vocab_projector"], "its bias is not tied");
        assert!(unsaved("llama", &["lm_head.weight"]).is_empty());
    }

    #[test]
    fn unknown_families_have_a_reason() {
        let why = |config: Option<&str>| LoadableFamily::of(config.map(str::as_bytes)).unwrap_err();
        assert!(why(None).contains("no config.json"));
        assert!(why(Some("[")).contains("not JSON"));
        assert!(why(Some("{\"model_type\": 3}")).contains("no model_type"));
        assert!(why(Some("{\"model_type\": \"yolo\"}")).contains("\"yolo\""));
    }

    #[test]
    fn no_model_type_is_repeated() {
        let mut all: Vec<&str> = known::families().flat_map(|family| family.model_types).copied().collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
