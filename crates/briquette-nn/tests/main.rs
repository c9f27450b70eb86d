//! Decisions on burn modules, in one program: each would link all of burn.
#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)]

mod codes;
mod conv;
mod fixture;
mod known;
mod law;
mod layers;
mod load;
mod pooled;
mod probe;
mod renewed;
mod rules;
mod tied;
mod training;
