//! Fuzzes directories of the compressed-tensors library: a configuration and a weight file.
#![no_main]

const FILES: [&str; 2] = ["config.json", "model.safetensors"];

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::files(&FILES, input)));
