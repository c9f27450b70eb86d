//! Fuzzes files of PyTorch before 1.6: pickles, then storages.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| briquette_fuzz::open_and_read(&briquette_fuzz::file("model.pt", input)));
