//! Runs the programs of the README and of the guide as doctests.
//!
//! `cargo test --doc -p briquette-docs` compiles and runs each program from the root of a clone.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/network.md")]
mod network {}

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
#[doc = include_str!("guide/src/deploy.md")]
mod deploy {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/compressed-tensors.md")]
mod compressed_tensors {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/gpus.md")]
mod gpus {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/file-format.md")]
mod file_format {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/reliability.md")]
mod reliability {}

#[cfg(doctest)]
#[doc = include_str!("guide/src/extend.md")]
mod extend {}
