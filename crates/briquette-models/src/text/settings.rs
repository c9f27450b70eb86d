//! The settings beside `tokenizer.json`: of the tokenizer, and of sentence-transformers.

use crate::config::Folder;
use briquette_core::{Error, Result};
use serde::Deserialize;
use serde_json::Value;

/// The settings beside `tokenizer.json`.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The keys that transformers lays over `tokenizer.json`, if they are there.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerSettings {
    tokenizer_class: Option<String>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
    add_prefix_space: Option<bool>,
}

impl TokenizerSettings {
    /// Returns the text of a `tokenizer.json` with these settings. A file that has them already stays as it is, and so does a
    /// damaged one.
    pub(super) fn apply(&self, bytes: Vec<u8>) -> Vec<u8> {
        let of_normalizer = [
            ("lowercase", self.do_lower_case),
            ("strip_accents", self.strip_accents),
            ("handle_chinese_chars", self.tokenize_chinese_chars),
        ];
        let of_pieces = [("add_prefix_space", self.add_prefix_space)];
        let has_settings = of_normalizer.iter().chain(&of_pieces).any(|(_, value)| value.is_some());
        if !has_settings || self.tokenizer_class.as_deref().is_some_and(|class| class.starts_with("PreTrained")) {
            return bytes;
        }
        let Ok(mut file) = serde_json::from_slice::<Value>(&bytes) else { return bytes };
        let parts = [("normalizer", "BertNormalizer", &of_normalizer[..]), ("pre_tokenizer", "ByteLevel", &of_pieces)];
        let mut is_changed = false;
        for (name, kind, settings) in parts {
            let part = file.get_mut(name).and_then(Value::as_object_mut);
            let Some(part) = part.filter(|part| part.get("type").and_then(Value::as_str) == Some(kind)) else {
                continue;
            };
            for (key, value) in settings {
                let Some(value) = value.map(Value::Bool) else { continue };
                is_changed |= part.insert((*key).to_string(), value.clone()) != Some(value);
            }
        }
        if is_changed { file.to_string().into_bytes() } else { bytes }
    }
}

#[derive(Deserialize)]
struct StSettings {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

/// A larger number means that a tokenizer has no limit.
const NO_LIMIT: f64 = 1e9;

#[derive(Deserialize)]
struct TokenizerLimit {
    model_max_length: Option<f64>,
}

/// Returns the maximum length of sentence-transformers, if set. Models of newer versions have it beside the tokenizer.
pub(crate) fn max_seq_length(folder: &Folder) -> Result<Option<usize>> {
    let own = folder.read::<StSettings>("sentence_bert_config.json")?;
    if own.as_ref().and_then(|settings| settings.do_lower_case) == Some(true) {
        check_lowercases(folder)?;
    }
    if let Some(length) = own.as_ref().and_then(|settings| settings.max_seq_length) {
        return Ok(Some(length));
    }
    if own.is_none() && folder.read::<Value>("modules.json")?.is_none() {
        return Ok(None);
    }
    let limit = folder.read::<TokenizerLimit>(TOKENIZER_CONFIG)?.and_then(|limit| limit.model_max_length);
    Ok(limit.filter(|length| (1.0..NO_LIMIT).contains(length)).map(|length| length as usize))
}

/// Refuses a tokenizer that keeps capital letters, for a model that is to get small ones.
fn check_lowercases(folder: &Folder) -> Result<()> {
    let file: Value = folder.read("tokenizer.json")?.unwrap_or_default();
    let normalizer = file.get("normalizer").map_or(String::new(), Value::to_string);
    if normalizer.contains(r#""lowercase":true"#) || normalizer.contains(r#""type":"Lowercase""#) {
        return Ok(());
    }
    let message =
        "do_lower_case is true, but tokenizer.json keeps capital letters; lowercase the texts and set it to false";
    Err(Error::input(message).at(folder.file("sentence_bert_config.json").display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_replace_those_of_the_file() {
        let bert = json!({ "normalizer": { "type": "BertNormalizer", "lowercase": true, "strip_accents": null } });
        let applied = |settings: Value, file: &Value| {
            let settings: TokenizerSettings = serde_json::from_value(settings).unwrap();
            serde_json::from_slice::<Value>(&settings.apply(file.to_string().into_bytes())).unwrap()
        };
        let cased = applied(json!({ "do_lower_case": false, "strip_accents": true }), &bert);
        assert_eq!(cased["normalizer"], json!({ "type": "BertNormalizer", "lowercase": false, "strip_accents": true }));
        let other = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false });
        assert_eq!(applied(other, &bert), bert);
        let gpt2 = json!({ "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false } });
        assert_eq!(applied(json!({ "add_prefix_space": true }), &gpt2)["pre_tokenizer"]["add_prefix_space"], true);
        assert_eq!(applied(json!({ "do_lower_case": true }), &gpt2), gpt2);
        let unchanged = b"{ \"normalizer\": {\"type\": \"BertNormalizer\", \"lowercase\": true } }".to_vec();
        let settings: TokenizerSettings = serde_json::from_value(json!({ "do_lower_case": true })).unwrap();
        assert_eq!(settings.apply(unchanged.clone()), unchanged);
    }
}
