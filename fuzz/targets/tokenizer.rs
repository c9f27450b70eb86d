//! Fuzzes tokenizer.json, and encodes and decodes a few texts.
#![no_main]

use briquette_fuzz::files;
use briquette_models::text::TextTokenizer;

const TEXTS: [&str; 3] = ["the quick brown fox", "\u{e9}\u{1f600} \u{fdfa}\t\n 12345", ""];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let directory = files(&["tokenizer.json"], input);
    let run = || {
        let tokenizer = TextTokenizer::open(&directory, 1 << 20, 64)?;
        for text in TEXTS {
            tokenizer.decode(&tokenizer.encode(text)?.0)?;
        }
        Ok::<_, briquette::Error>(())
    };
    if let Err(error) = run() {
        assert!(error.exit_code() == 4 && error.to_string().lines().count() == 1, "{error}");
    }
});
