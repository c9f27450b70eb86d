//! End to end, through the command and the public interface.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

mod bad_input;
mod batch;
mod bit_flips;
mod burnpack;
mod cast;
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
mod interop;
mod minilm;
mod printed;
mod roles;
mod sandbox;
mod screen;
mod signals;
mod students;
mod trace;
mod weights;
