//! Fuzzes `last.json`, the state of an interrupted training.
#![no_main]

use briquette_distill::Checkpoints;
use briquette_fuzz::{file, place};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let checkpoints = Checkpoints::at(place("")).expect("can open the directory");
    file("last.json", input);
    if let Err(error) = checkpoints.state() {
        assert!(Checkpoints::is_damage(&error) && error.to_string().lines().count() == 1, "{error}");
    }
});
