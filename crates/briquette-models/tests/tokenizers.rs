//! Tests tokenizers: each broken tokenizer.json runs or is refused in one line, and long texts are encoded in pieces.
#![allow(clippy::print_stderr, missing_docs)]

use briquette_models::data::TextItem;
use briquette_models::text::TextTokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TEXTS: [&str; 6] =
    ["", "the quick brown fox", "é\u{1f600} ﷺ\t\n  12345", "a", "<s> [CLS] ##ing", "\u{0}\u{202e}x"];

/// Time limit for one file and its texts in a build without optimization.
const MOST: Duration = Duration::from_secs(60);

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads a file and runs it; returns the error, if any.
fn outcome(bytes: &[u8]) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tokenizer.json"), bytes).unwrap();
    let start = Instant::now();
    let found = TextTokenizer::open(directory.path(), 1 << 20, 64).and_then(|tokenizer| {
        for text in TEXTS {
            let tokens = tokenizer.encode(text)?;
            tokenizer.encode_all(text)?;
            tokenizer.decode(&tokens.ids)?;
            let mut stream = tokenizer.stream();
            tokens.ids.iter().try_for_each(|token| stream.push(*token).map(|_| ()))?;
            stream.finish()?;
        }
        Ok(())
    });
    assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
    let error = found.err()?;
    let line = error.to_string();
    assert!(error.exit_code() == 4 && line.lines().count() == 1 && !line.contains("internal"), "{line}");
    Some(line)
}

/// Lists all positions in a document except vocabulary entries, which are all alike.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_string());
    match value {
        Value::Object(fields) => fields.iter().take(20).for_each(|(key, value)| {
            places(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found)
        }),
        Value::Array(items) => {
            items.iter().take(8).enumerate().for_each(|(n, value)| places(value, &format!("{at}/{n}"), found))
        }
        _ => {}
    }
}

/// Returns values to insert anywhere: parts of other tokenizers, and values of other types or sizes.
fn strange() -> Vec<Value> {
    let many = |part: Value, n: usize| json!({"type": "Sequence", "normalizers": vec![part; n]});
    let mut values = vec![
        json!(null),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e300),
        json!(true),
        json!(""),
        json!("#".repeat(5000)),
        json!([]),
        json!({}),
        json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
        json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}),
        json!({"type": "Replace", "pattern": {"Regex": "(?<=a*)b|(?=x)"}, "content": ""}),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Split", "pattern": {"Regex": "(x+x+)+y|(?<!(a|b|c)+)d"}, "behavior": "Isolated", "invert": true}),
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": false}),
        json!({"type": "FixedLength", "length": 0}),
        json!({"type": "CharDelimiterSplit", "delimiter": "\u{0}"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false}),
        json!({"type": "Strip", "content": "a", "start": u32::MAX, "stop": u32::MAX}),
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
        json!({"type": "BPE", "vocab": {"a": 0, "ab": 9}, "merges": ["a b", "ab ab"], "continuing_subword_prefix": "###"}),
        json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "continuing_subword_prefix": "####"}),
        json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["", -1.0], ["a", -1e308]], "byte_fallback": true}),
        json!({"type": "WordPiece", "unk_token": "none", "vocab": {"a": 0}, "continuing_subword_prefix": "", "max_input_chars_per_word": 0}),
        json!({"type": "WordLevel", "unk_token": "none", "vocab": {"a": u32::MAX}}),
        json!({"type": "TemplateProcessing", "single": vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 9], "pair": [], "special_tokens": {}}),
        json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [], "special_tokens": {"x": {"id": "x", "ids": [], "tokens": []}}}),
        many(json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}), 40),
        many(json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}), 7),
        many(json!({"type": "Prepend", "prepend": "abc"}), 60),
        json!([{"id": 0, "content": "", "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true}]),
        json!([{"id": u32::MAX, "content": "a", "single_word": true, "lstrip": true, "rstrip": true, "normalized": false, "special": false}]),
    ];
    let nested = (0..40).fold(json!({"type": "NFC"}), |part, _| json!({"type": "Sequence", "normalizers": [part]}));
    values.push(nested);
    // Character maps: empty, truncated, and with offsets out of range.
    for map in ["", "AAAA", "BAAAAAAAAAA=", "/////w==", "CAAAAP////////8=", "AAQAAP8DAAA="] {
        values.push(json!({"type": "Precompiled", "precompiled_charsmap": map}));
    }
    values
}

/// Returns a copy of a document with another value in one position.
fn mutated(document: &Value, places: &[String], values: &[Value], random: &mut Random) -> Vec<u8> {
    let mut document = document.clone();
    for _ in 0..1 + random.below(2) {
        let place = &places[1 + random.below(places.len() - 1)];
        let value = match random.below(4) {
            0 => places
                .get(random.below(places.len()))
                .and_then(|other| document.pointer(other))
                .cloned()
                .unwrap_or_default(),
            _ => values[random.below(values.len())].clone(),
        };
        if let Some(found) = document.pointer_mut(place) {
            *found = value;
        }
    }
    serde_json::to_vec(&document).unwrap()
}

/// Returns a copy of a file with some bytes changed, removed or duplicated.
fn with_other_bytes(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.below(256) as u8,
            1 => bytes.truncate(at.max(1)),
            2 => drop(bytes.drain(at..(at + 1 + random.below(40)).min(bytes.len()))),
            _ => {
                let again = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}

#[test]
fn broken_tokenizers_run_or_are_refused_in_one_line() {
    let mut random = Random(31);
    let (mut n_refused, mut n_run) = (0, 0);
    let files = [("fixtures/models/bert-tiny", 250), ("fixtures/models/llama-tied", 250), ("models/minilm", 24)];
    for (directory, n) in files {
        let path = root().join(directory).join("tokenizer.json");
        let Ok(bytes) = std::fs::read(&path) else {
            eprintln!("{} is not there: its share of the test was left out", path.display());
            continue;
        };
        assert_eq!(outcome(&bytes), None, "{directory} itself is run");
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let (mut at, values) = (Vec::new(), strange());
        places(&document, "", &mut at);
        for round in 0..n {
            let broken = match round % 3 {
                0 => with_other_bytes(&bytes, &mut random),
                _ => mutated(&document, &at, &values, &mut random),
            };
            match outcome(&broken) {
                Some(_) => n_refused += 1,
                None => n_run += 1,
            }
        }
        // Each unusual part at its proper place.
        for section in ["/normalizer", "/pre_tokenizer", "/post_processor", "/decoder", "/model", "/added_tokens"] {
            for value in &values {
                let mut document = document.clone();
                *document.pointer_mut(section).unwrap() = value.clone();
                outcome(&serde_json::to_vec(&document).unwrap());
            }
        }
    }
    assert!(n_refused > 100 && n_run > 15, "{n_refused} refused, {n_run} run");
}

#[test]
fn a_long_text_has_the_same_tokens_in_pieces() {
    let words = std::fs::read_to_string(root().join("fixtures/models/text.txt")).unwrap();
    // Without a space between two words, a text stays whole.
    let texts = [words.repeat(900_000 / words.len()), "x-".repeat(300_000)];
    // Real tokenizers are there after `just fetch-minilm` and `just fetch-smollm2`.
    let models = ["fixtures/models/bert-tiny", "fixtures/models/llama-tied", "models/minilm", "models/smollm2"];
    for model in models.map(|model| root().join(model)).iter().filter(|model| model.exists()) {
        let tokenizer = TextTokenizer::open(model, 1 << 20, 64).unwrap();
        for text in &texts {
            let whole = tokenizer.encode_prompt(text, false).unwrap();
            assert_eq!(tokenizer.encode_all(text).unwrap(), whole, "{}", model.display());
        }
    }
}

#[test]
fn slow_expressions_time_out() {
    let path = root().join("fixtures/models/llama-tied/tokenizer.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    document["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "(?<=(?:a|b|ab)+x)c"}, "content": "d"});
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("tokenizer.json"), serde_json::to_vec(&document).unwrap()).unwrap();
    let start = Instant::now();
    let found = TextTokenizer::open(directory.path(), 1 << 20, 64)
        .and_then(|tokenizer| tokenizer.encode_all(&"ab".repeat(15_000)));
    if let Err(error) = found {
        assert_eq!(error.exit_code(), 4, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
}

/// The ids are those of transformers 5.23 with `truncation=True`.
#[test]
fn the_longer_text_of_a_pair_is_truncated_first() {
    let directory = tempfile::tempdir().unwrap();
    let (special, text) = (
        |name: &str, segment: usize| json!({"SpecialToken": {"id": name, "type_id": segment}}),
        |name: &str, segment: usize| json!({"Sequence": {"id": name, "type_id": segment}}),
    );
    let words: serde_json::Map<String, Value> = (5..13).map(|id| (format!("w{id}"), id.into())).collect();
    let mut vocab = json!({"[UNK]": 1, "[CLS]": 2, "[SEP]": 3});
    vocab.as_object_mut().unwrap().extend(words);
    let file = |segment: usize| {
        json!({
            "version": "1.0", "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": &vocab},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)],
                "pair": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0), text("B", 1), special("[SEP]", segment)],
                "special_tokens": {
                    "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                    "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
                },
            },
        })
    };
    let open = |segment: usize, max_length: usize| {
        std::fs::write(directory.path().join("tokenizer.json"), file(segment).to_string()).unwrap();
        TextTokenizer::open(directory.path(), 40, max_length).unwrap()
    };
    let pair = TextItem { first: "w5 w6 w7 w8 w9".into(), second: Some("w10 w11 w12".into()) };
    for (max_length, ids, n_first) in [
        (6, &[2, 5, 6, 3, 10, 3][..], 4),
        (7, &[2, 5, 6, 3, 10, 11, 3], 4),
        (8, &[2, 5, 6, 7, 3, 10, 11, 3], 5),
        (64, &[2, 5, 6, 7, 8, 9, 3, 10, 11, 12, 3], 7),
    ] {
        let found = open(1, max_length).encode_item(&pair).unwrap();
        assert_eq!((found.ids.as_slice(), found.n_first), (ids, n_first), "{max_length}");
    }
    let one = TextItem { second: None, ..pair.clone() };
    assert_eq!(open(1, 64).encode_item(&one).unwrap(), open(1, 64).encode(&one.first).unwrap());
    let error = open(0, 64).encode_item(&pair).unwrap_err().to_string();
    assert!(error.contains("the segments of a pair are not 0 and then 1"), "{error}");
}
