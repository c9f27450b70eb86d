//! Fuzzes PyTorch archives.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::file("model.pt", input)));
