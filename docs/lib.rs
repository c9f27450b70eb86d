//! The programs of README.md and of the pages beside this file: `cargo test --doc -p briquette-docs` compiles and runs each as it
//! stands, from the root of a clone.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("distill.md")]
mod distill {}

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
