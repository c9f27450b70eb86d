//! Fuzzes an index with up to three shards.
#![no_main]

const FILES: [&str; 4] = ["model.safetensors.index.json", "a", "b", "c"];

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::files(&FILES, input)));
