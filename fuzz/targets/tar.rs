//! Fuzzes the pickle and the tables of a valid tar archive of PyTorch before 0.1.10.
#![no_main]

use briquette_fuzz::{file, open_and_read, parts, tar};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    const INFO: &[u8] = b"\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    let [pickle, tensors, storages] = parts(input);
    let entries = [("sys_info", INFO), ("pickle", pickle), ("tensors", tensors), ("storages", storages)];
    open_and_read(&file("model.pt", &tar(&entries)));
});
