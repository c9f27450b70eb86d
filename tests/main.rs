//! End to end, through the command and the public interface.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

#[cfg(feature = "model")]
#[path = "../crates/briquette-formats/tests/archives/mod.rs"]
mod archives;
mod bad_input;
mod batch;
mod bit_flips;
mod cast;
mod checkpoints;
mod compress;
mod decoders;
mod diff;
mod distill;
mod evaluate;
mod export;
mod faults;
mod frozen;
mod goldens;
mod halves;
mod minilm;
mod printed;
mod sandbox;
mod screen;
mod signals;
mod students;
mod trace;
mod weights;
