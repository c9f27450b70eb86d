//! Fuzzes files of input statistics. Statistics that were read can be written and read again.
#![no_main]

use briquette::formats::input_stats::StatisticsFile;
use briquette_fuzz::{file, place};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match StatisticsFile::read(&file("statistics.safetensors", input)) {
        Ok(found) => {
            let again = place("again.safetensors");
            found.write(&again).expect("statistics that were read can be written");
            StatisticsFile::read(&again).expect("statistics that were written can be read");
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
});
