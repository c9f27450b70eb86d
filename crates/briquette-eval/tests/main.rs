//! All tests in one program, since each test program would link all of burn.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "flex")]
mod blocks;
#[cfg(feature = "flex")]
mod curvatures;
mod data;
#[cfg(feature = "flex")]
mod decoders;
#[cfg(feature = "flex")]
mod evaluate;
#[cfg(feature = "flex")]
mod generate;
#[cfg(feature = "flex")]
mod unchanged;
