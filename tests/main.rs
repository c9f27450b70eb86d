//! End to end, through the command and the public interface.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

mod bad_input;
mod batch;
mod bit_flips;
mod compress;
mod distill;
mod evaluate;
mod export;
mod faults;
mod frozen;
mod goldens;
mod minilm;
mod sandbox;
mod signals;
mod weights;
