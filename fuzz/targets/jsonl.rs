//! Fuzzes files of JSON lines.
#![no_main]

use briquette_fuzz::file;
use briquette_models::data::Sentences;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match Sentences::read_jsonl(&file("data.jsonl", input)) {
        Ok(found) => assert!(found.pairs.iter().all(|(a, b, _)| a.max(b) < &found.texts.len())),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
});
