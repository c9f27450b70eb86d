//! Fuzzes directories of Briquette: a manifest and a weight file.
#![no_main]

const FILES: [&str; 2] = ["briquette.json", "model.briquette.safetensors"];

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::files(&FILES, input)));
