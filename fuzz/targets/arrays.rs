//! Fuzzes files of arrays: `.npy`, `.npz`, IDX or safetensors.
#![no_main]

use briquette_fuzz::file;
use briquette_models::data::Array;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Err(error) = Array::read(&file("data.npz", input), &["images", "x", "arr_0"]) {
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
});
