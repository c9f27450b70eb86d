//! Runs the programs of the README and of the guide as doctests.
//!
//! `cargo test --doc -p briquette-docs` compiles and runs each program from the root of a clone.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/training-code.md")]
mod training_code {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/distill-code.md")]
mod distill_code {}

#[cfg(doctest)]
#[doc = include_str!("benchmarks.md")]
mod benchmarks {}

#[cfg(doctest)]
#[doc = include_str!("compressed-tensors.md")]
mod compressed_tensors {}

#[cfg(doctest)]
#[doc = include_str!("cuda.md")]
mod cuda {}

#[cfg(doctest)]
#[doc = include_str!("format.md")]
mod format {}
