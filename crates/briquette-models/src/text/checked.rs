//! Checks a tokenizer.json for input that would make the tokenizer library panic, hang or exhaust memory.

use super::charsmap::check_charsmap;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Largest number of parts in a section, such as the steps of a normalizer.
const MAX_PARTS: usize = 64;
/// Deepest nesting of sequences. The library's parser doubles its time with each level.
const MAX_LEVELS: usize = 6;
/// Longest regular expression in bytes; the longest of known models has 500.
const MAX_REGEX_BYTES: usize = 4096;
/// Longest prefix or suffix of a text or subword in bytes.
const MAX_AFFIX_BYTES: usize = 64;
/// Longest token of a vocabulary in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Longest word in characters that is looked up in a vocabulary; BERT has 100.
const MAX_WORD: u64 = 512;
/// Largest number of special tokens around a text.
const MAX_SPECIAL: usize = 256;
/// Largest factor by which a text may grow.
const MAX_GROWTH: u64 = 256;
/// Largest growth of a text in a [plain](Checked::is_plain) tokenizer.
const PLAIN_GROWTH: u64 = 8;

/// Regular expressions of known models, with linear run time.
const KNOWN_REGEXES: [&str; 10] = [
    // GPT-2; Llama 3; Qwen2.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s+",
    " {2,}",
    " ",
    r"\p{N}{1,3}",
    "[0-9]",
    r"[\r\n]",
    r"\d{3}",
];

/// A tokenizer.json that passed the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    /// Whether short texts need no guarded thread: the regular expressions are known, and texts grow little.
    pub(super) is_plain: bool,
    /// Longest token of the vocabulary in bytes.
    pub(super) longest_token: usize,
}

#[derive(Deserialize)]
struct Sections {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Words,
}

/// The vocabulary of a tokenizer model.
#[derive(Deserialize)]
struct Words {
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<u64>,
    vocab: Option<LongestToken>,
}

/// Length of the longest token in bytes.
struct LongestToken(usize);

impl<'de> Deserialize<'de> for LongestToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = LongestToken;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a vocabulary: an object, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut longest = 0;
                while let Some((token, _)) = map.next_entry::<String, IgnoredAny>()? {
                    longest = longest.max(token.len());
                }
                Ok(LongestToken(longest))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut longest = 0;
                while let Some((token, _)) = seq.next_element::<(String, IgnoredAny)>()? {
                    longest = longest.max(token.len());
                }
                Ok(LongestToken(longest))
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}

/// Checks the bytes of a tokenizer.json.
///
/// # Errors
/// If the JSON has another structure, or a part is not supported.
pub(super) fn check(bytes: &[u8]) -> Result<Checked, String> {
    let sections: Sections = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    sections.model.check()?;
    let mut is_plain = true;
    let named = [
        ("normalizer", &sections.normalizer),
        ("pre_tokenizer", &sections.pre_tokenizer),
        ("post_processor", &sections.post_processor),
        ("decoder", &sections.decoder),
    ];
    for (name, section) in named {
        let mut found = SectionParts { n_parts: 0, growth: 1, has_unknown_regex: false };
        found.walk(section, 0).map_err(|what| format!("{name}: {what}"))?;
        if found.growth > MAX_GROWTH {
            let growth = found.growth;
            return Err(format!(
                "{name}: it can make a text {growth} times as long, expected at most {MAX_GROWTH} times"
            ));
        }
        is_plain &= !found.has_unknown_regex && found.growth <= PLAIN_GROWTH;
    }
    Ok(Checked { is_plain, longest_token: sections.model.longest_token() })
}

impl Words {
    fn longest_token(&self) -> usize {
        self.vocab.as_ref().map_or(0, |vocab| vocab.0)
    }

    fn check(&self) -> Result<(), String> {
        for (key, affix) in [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            at_most(key, "bytes", affix.as_ref().map_or(0, String::len), MAX_AFFIX_BYTES)?;
        }
        if let Some(n) = self.max_input_chars_per_word.filter(|n| *n > MAX_WORD) {
            return Err(format!("max_input_chars_per_word: found {n}, expected at most {MAX_WORD}"));
        }
        at_most("vocab", "bytes in a token", self.longest_token(), MAX_TOKEN_BYTES)
    }
}

/// Combined properties of the parts of a section.
struct SectionParts {
    n_parts: usize,
    growth: u64,
    has_unknown_regex: bool,
}

impl SectionParts {
    /// Checks a part and its nested parts. Like the library, identifies parts without `type` by their keys.
    fn walk(&mut self, part: &Value, level: usize) -> Result<(), String> {
        at_most("sequences", "levels", level, MAX_LEVELS)?;
        let Some(part) = part.as_object() else { return Ok(()) };
        self.n_parts += 1;
        at_most("steps", "steps", self.n_parts, MAX_PARTS)?;
        self.pattern(part)?;
        self.special_tokens(part)?;
        if let Some(text) = part.get("prepend").and_then(Value::as_str) {
            at_most("prepend", "bytes", text.len(), MAX_AFFIX_BYTES)?;
        }
        if let Some(map) = part.get("precompiled_charsmap") {
            check_charsmap(map.as_str().ok_or("precompiled_charsmap: expected base64")?)?;
        }
        for key in ["normalizers", "pretokenizers", "processors", "decoders"] {
            for inner in part.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.walk(inner, level + 1)?;
            }
        }
        Ok(())
    }

    /// Checks a pattern and its replacement text.
    fn pattern(&mut self, part: &Map<String, Value>) -> Result<(), String> {
        let content = part.get("content").and_then(Value::as_str);
        let Some(pattern) = part.get("pattern").and_then(Value::as_object) else { return Ok(()) };
        let of_kind = |kind: &str| pattern.get(kind).and_then(Value::as_str);
        // Length of the shortest match, which the content replaces.
        let shortest = match (of_kind("String"), of_kind("Regex")) {
            (Some(""), _) => return Err("pattern: found an empty text, expected at least one character".into()),
            (Some(text), _) => text.len() as u64,
            (_, Some(regex)) => {
                at_most("pattern", "bytes", regex.len(), MAX_REGEX_BYTES)?;
                self.has_unknown_regex |= !KNOWN_REGEXES.contains(&regex);
                1
            }
            _ => return Err("pattern: expected a text or a regular expression".into()),
        };
        if let Some(content) = content {
            self.grow((content.len() as u64).div_ceil(shortest) + u64::from(of_kind("Regex").is_some()));
        }
        Ok(())
    }

    /// Checks the special tokens of a template. A template that repeats the text makes it longer.
    fn special_tokens(&mut self, part: &Map<String, Value>) -> Result<(), String> {
        for (_, special) in part.get("special_tokens").and_then(Value::as_object).into_iter().flatten() {
            let n_ids = special.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
            at_most("special_tokens", "ids of a token", n_ids, MAX_SPECIAL)?;
        }
        let mut growth = 1;
        for key in ["single", "pair"] {
            let template = part.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            at_most(key, "pieces", template.len(), MAX_SPECIAL)?;
            let texts = || template.iter().filter_map(|piece| piece.pointer("/Sequence/id"));
            let times = texts().map(|id| texts().filter(|other| *other == id).count()).max();
            growth = growth.max(times.unwrap_or(1) as u64);
        }
        self.grow(growth);
        Ok(())
    }

    fn grow(&mut self, factor: u64) {
        self.growth = self.growth.saturating_mul(factor.max(1));
    }
}

fn at_most(key: &str, of_what: &str, found: usize, most: usize) -> Result<(), String> {
    if found > most {
        return Err(format!("{key}: found {found} {of_what}, expected at most {most}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(normalizer: &str) -> Result<Checked, String> {
        check(format!(r#"{{"normalizer":{normalizer},"model":{{"type":"WordLevel","vocab":{{"a":0}}}}}}"#).as_bytes())
    }

    #[test]
    fn known_parts_need_no_guard_and_unknown_regexes_do() {
        for (normalizer, is_plain) in [
            ("null", true),
            (r#"{"type":"Replace","pattern":{"String":" "},"content":"▁"}"#, true),
            (r#"{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"NFC"}]}"#, true),
            (r#"{"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}"#, true),
            (r#"{"type":"Replace","pattern":{"Regex":"(?<=a+)b"},"content":" "}"#, false),
            (r#"{"type":"Replace","pattern":{"String":" "},"content":"nine bytes"}"#, false),
        ] {
            assert_eq!(checked(normalizer), Ok(Checked { is_plain, longest_token: 1 }), "{normalizer}");
        }
    }

    #[test]
    fn unsupported_parts_are_refused_by_name() {
        let doubled = vec![r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#; 40].join(",");
        let doubled = format!(r#"{{"type":"Sequence","normalizers":[{doubled}]}}"#);
        let nested = format!("{}{{}}{}", r#"{"type":"Sequence","normalizers":["#.repeat(20), "]}".repeat(20));
        let long = format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "a".repeat(65));
        for (normalizer, said) in [
            (r#"{"type":"Replace","pattern":{"String":""},"content":" "}"#, "empty"),
            (r#"{"type":"Precompiled","precompiled_charsmap":"AAAA"}"#, "precompiled_charsmap"),
            (doubled.as_str(), "times as long"),
            (nested.as_str(), "levels"),
            (long.as_str(), "prepend: found 65 bytes"),
        ] {
            let error = checked(normalizer).unwrap_err();
            assert!(error.starts_with("normalizer: ") && error.contains(said), "{error}");
        }
        for (model, said) in [
            (format!(r#""continuing_subword_prefix":"{}""#, "#".repeat(70)), "continuing_subword_prefix"),
            (r#""max_input_chars_per_word":18446744073709551615"#.into(), "max_input_chars_per_word"),
            (format!(r#""vocab":[["{}",0.0]]"#, "a".repeat(20_000)), "vocab"),
        ] {
            let error = check(format!(r#"{{"model":{{{model}}}}}"#).as_bytes()).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
