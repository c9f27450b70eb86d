//! A whole file: safetensors, or whatever else its first bytes make of it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::file(
    "model.safetensors",
    input
)));
