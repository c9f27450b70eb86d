//! Fuzzes the pickle of a valid TorchScript program with two storages of 64 bytes.
#![no_main]

use briquette_fuzz::{file, open_and_read, zip};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let code: (&str, &[u8]) = ("m/code/__torch__.py", b"");
    let archive = zip(&[("m/data.pkl", input), ("m/data/0", &[1; 64]), ("m/data/1", &[2; 64]), code]);
    open_and_read(&file("model.pt", &archive));
});
