//! A SHA256SUMS. What is read can be written and read again.
#![no_main]

use briquette_formats::io::{InputFile, sums};
use briquette_fuzz::file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let read = |bytes: &[u8]| sums::read(&InputFile::open(&file(sums::FILE_NAME, bytes)).expect("a file"));
    match read(input) {
        Ok(found) => assert_eq!(read(sums::to_lines(&found).as_bytes()).expect("lines that were written"), found),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
});
