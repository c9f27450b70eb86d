//! Fuzzes safetensors files, or files of another format by their first bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::file(
    "model.safetensors",
    input
)));
