//! Fuzzes SHA256SUMS. Sums that were read can be written and read again.
#![no_main]

use briquette_formats::io::{InputFile, sums};
use briquette_fuzz::file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let read = |bytes: &[u8]| sums::read(&InputFile::open(&file(sums::FILE_NAME, bytes)).expect("the file exists"));
    match read(input) {
        Ok(found) => assert_eq!(read(sums::to_lines(&found).as_bytes()).expect("written sums can be read"), found),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
});
